"""The model in the package: it loads by plain transformers, is small, answers, and is scored as it answers."""

import json
from pathlib import Path

import pytest
import torch
from divevlm_tiny import build, load, questions
from divevlm_tiny.shipped import MODELS
from transformers import AutoModelForImageTextToText, AutoProcessor, pipeline

from divevlm import prune
from divevlm.bench.accuracy_table import tables
from divevlm.cli import main
from divevlm.experiments.answering import Answerer
from divevlm.experiments.tasks import item_of
from divevlm.methods import method_of
from training.export import unpack
from training.hints import Heads
from training.loop import restore

FLOOR = 0.75  # of 16 validation questions; far above blind guessing, well below what the model card states


@pytest.fixture(scope="module")
def model_and_processor():
    return load("llava")


@pytest.fixture(scope="module")
def samples():
    return questions("validation", 16)


def items(samples):
    return [item_of(sample, str(sample.number)) for sample in samples]


def generated(model, processor, sample):
    """By a plain generate()."""
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample.text}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    inputs = processor(images=sample.image, text=text, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return processor.decode(ids, skip_special_tokens=True).strip()


def test_it_loads_by_plain_from_pretrained_in_float32():
    model = AutoModelForImageTextToText.from_pretrained(MODELS / "llava")
    assert model.dtype == torch.float32
    assert type(model).__name__ == "LlavaForConditionalGeneration"
    assert AutoProcessor.from_pretrained(MODELS / "llava").tokenizer.unk_token == "<unk>"


def test_it_keeps_to_its_limits(model_and_processor):
    model, _ = model_and_processor
    text = model.config.text_config
    assert sum(parameter.numel() for parameter in model.parameters()) <= 12_000_000
    assert (MODELS / "llava" / "model.safetensors").stat().st_size <= 25_000_000
    assert text.num_hidden_layers >= 8
    assert text.hidden_size >= 256
    assert model.config.vision_feature_layer == -2


def test_no_training_head_is_shipped_and_no_path_of_a_machine():
    words = " ".join(path.read_text() for path in (MODELS / "llava").glob("*.json"))
    assert str(Path(__file__).parents[2]) not in words
    assert "_name_or_path" not in json.loads((MODELS / "llava" / "config.json").read_text())


def test_it_answers_most_questions_and_the_suite_scores_what_generate_says(model_and_processor, samples):
    model, processor = model_and_processor
    answerer = Answerer(model, processor)
    answers = answerer.forced(items(samples), None)
    assert sum(answer.score for answer in answers) >= FLOOR * len(samples)
    for sample, answer in list(zip(samples, answers, strict=True))[:4]:
        assert (generated(model, processor, sample) == sample.answer) == answer.score


def test_pruned_answers_are_scored_as_generate_gives_them(model_and_processor, samples):
    model, processor = model_and_processor
    method = method_of("dive", 32, {})
    answerer = Answerer(model, processor)
    answers = answerer.forced(items(samples[:4]), method)
    for sample, answer, report in zip(samples[:4], answers, answerer.report.samples, strict=True):
        with prune(model, method) as session:
            assert (generated(model, processor, sample) == sample.answer) == answer.score
            assert session.report.samples[0].kept == report.kept


def test_it_works_in_a_pipeline(samples):
    ask = pipeline("image-text-to-text", model=str(MODELS / "llava"))
    content = [{"type": "image", "image": samples[0].image}, {"type": "text", "text": samples[0].text}]
    (made,) = ask(text=[{"role": "user", "content": content}], max_new_tokens=4, return_full_text=False)
    assert made["generated_text"].strip()


def test_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match="model must be one of .* or a folder with a trained one, got 'gpt'"):
        load("gpt")


def test_bench_accuracy_takes_another_training_from_a_folder(capsys):
    rows = []
    for name in ("llava", str(MODELS / "llava")):
        main(["bench", "accuracy", "--methods", "dive", "--keep", "16", "--n", "8", "--json", "--model", name])
        rows.append(json.loads(capsys.readouterr().out)["rows"])
    assert [row["tasks"] for row in rows[0]] == [row["tasks"] for row in rows[1]]
    assert main(["bench", "accuracy", "--model", "gpt"]) == 2
    assert "model must be an embedded one (llava, qwen2vl)" in capsys.readouterr().err


def test_bench_accuracy_refuses_a_model_that_knows_other_things(capsys, monkeypatch):
    monkeypatch.setattr("divevlm.bench.accuracy.WORDS", 100)  # tiny-llava has 110
    assert main(["bench", "accuracy", "--limit", "4"]) == 2
    assert (
        "--model must be a tiny-llava or a tiny-qwen2vl (for others: divevlm eval), got 'llava'"
        in capsys.readouterr().err
    )


def test_bench_accuracy_prints_one_object_and_draws(capsys, tmp_path):
    main(
        [
            "bench",
            "accuracy",
            "--methods",
            "dive",
            "--keep",
            "16",
            "--n",
            "4",
            "--json",
            "--plot",
            str(tmp_path / "a.png"),
        ]
    )
    made = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in made["rows"]] == ["vanilla", "blind", "dive", "random", "grid"]
    assert all(0 <= row["accuracy"] <= 100 for row in made["rows"])
    assert made["rows"][2]["hit_rate"] is not None
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert "minus full" in tables(made)


def test_bench_accuracy_refuses_budgets_that_are_no_counts(capsys):
    assert main(["bench", "accuracy", "--keep", "0"]) == 2
    assert "keep must be a count of at least 1 or a share in (0, 1], got 0" in capsys.readouterr().err


def test_training_can_go_on_from_the_shipped_files(tmp_path):
    unpack(MODELS / "llava", tmp_path)
    model = build.llava()
    heads = Heads(model.config.text_config.hidden_size, model.config.vision_config.hidden_size)
    step, spent = restore(tmp_path, {"model": model, "heads": heads}, [])
    assert step > 2000
    assert spent > 3600
    shipped, _ = load("llava")
    assert all(value.equal(model.state_dict()[name]) for name, value in shipped.state_dict().items())
    before = (tmp_path / "checkpoint.pt").stat().st_mtime_ns
    unpack(MODELS / "llava", tmp_path)  # leaves a checkpoint alone
    assert (tmp_path / "checkpoint.pt").stat().st_mtime_ns == before
