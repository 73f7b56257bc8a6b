"""The suite scores what a plain pruned run of the model gives, question by question."""

import math

import pytest
import torch
from divevlm_tiny import build
from divevlm_tiny.splits import questions

from divevlm import prune
from divevlm.bench.accuracy import contenders, hit_rate, majority, row
from divevlm.engine.once import Once
from divevlm.experiments.tiny_answers import Answer, answer, blind, chunks, look, prompt, vanilla
from divevlm.methods import method_of, parse
from tests.training.test_forward import MICRO
from training import counting
from training.geometry import auc, effective_rank, geometry


@pytest.fixture(scope="module")
def setting():
    torch.manual_seed(1)
    model, processor = build.llava(MICRO).eval(), build.processor()
    for parameter in model.parameters():  # fresh weights hardly look at the picture
        parameter.data.mul_(3 if parameter.dim() > 1 else 1)
    samples = questions("validation", 10)
    (chunk,) = chunks(samples, processor, scenes=3)
    look(model, chunk)
    return model, processor, samples, chunk


def alone(model, processor, sample, method=None):
    """Log-likelihood of the gold answer by a plain forward pass on one question, and what was kept."""
    text = prompt(processor, sample.text)
    asked = processor(images=sample.image, text=text, return_tensors="pt")
    gold = processor.tokenizer(sample.answer, add_special_tokens=False)["input_ids"] + [
        processor.tokenizer.eos_token_id
    ]
    ids = torch.cat([asked["input_ids"], torch.tensor([gold])], dim=1)
    labels = torch.full_like(ids, -100)
    labels[0, -len(gold) :] = ids[0, -len(gold) :]
    given = {"input_ids": ids, "pixel_values": asked["pixel_values"], "labels": labels}
    with torch.inference_mode():
        if method is None:
            logits, kept = model(**given).logits, None
        else:
            with prune(model, method) as session:
                logits, kept = model(**given).logits, session.report.samples[0].kept
    logs = logits[0, -len(gold) - 1 : -1].log_softmax(-1)
    return float(logs[range(len(gold)), gold].sum()), kept


@pytest.mark.parametrize("name", ["dive", "dive-no-update", "grid", "fastv", "farthest"])
def test_pruned_answers_are_those_of_single_runs(setting, name):
    model, processor, samples, chunk = setting
    method = method_of(name, 24, {})
    for sample, found in zip(samples, answer(model, chunk, method), strict=True):
        likelihood, kept = alone(model, processor, sample, method)
        assert found.sample is sample
        assert found.kept == kept
        assert found.likelihood == pytest.approx(likelihood, abs=1e-3)


def test_a_method_that_looks_into_the_tower_gets_it(setting):
    model, processor, samples, chunk = setting
    method = method_of("visionzip", 24, {})
    likelihood, _ = alone(model, processor, samples[0], method)
    assert answer(model, chunk, method)[0].likelihood == pytest.approx(likelihood, abs=1e-3)


def test_blocks_before_the_cut_that_run_once_change_nothing(setting):
    model, _, _, chunk = setting
    once = Once(model)
    for name in ("dive", "grid", "visionzip", "tome", "dive:layer=1", "fastv", "dive"):
        method = method_of(*_read(name))
        found, plain = answer(model, chunk, method, once), answer(model, chunk, method)
        assert [one.kept for one in found] == [one.kept for one in plain]
        assert [one.likelihood for one in found] == pytest.approx([one.likelihood for one in plain], abs=1e-5)
    assert all("forward" not in vars(block) for block in model.model.language_model.layers)


def test_a_picture_with_several_questions_runs_through_the_tower_once(setting):
    model, _, _, chunk = setting
    rows = []
    block = model.model.vision_tower.encoder.layers[0]
    hook = block.mlp.register_forward_hook(lambda module, given, output: rows.append(len(given[0])))
    for method in (method_of("visionzip", 24, {}), method_of("visionzip", 12, {})):
        answer(model, chunk, method, once := Once(model))
        answer(model, chunk, method, once)
    hook.remove()
    assert rows == [3, 3]


def _read(text):
    name, options = parse(text)
    return name, 24, options


def test_shared_prefixes_change_nothing(setting):
    model, processor, samples, chunk = setting
    found, states = vanilla(model, chunk)
    assert states.shape == (3, 576, 32)
    for sample, one in zip(samples, found, strict=True):
        assert one.likelihood == pytest.approx(alone(model, processor, sample)[0], abs=1e-3)


def test_blind_is_the_full_sequence_with_the_picture_masked(setting):
    model, _, _, chunk = setting
    words = (chunk.ids != chunk.image_token) & chunk.present.bool()
    positions = (chunk.present.cumsum(1) - 1).clamp_min(0)
    with torch.inference_mode():
        states = model.model.language_model(
            input_ids=chunk.ids, attention_mask=words.long(), position_ids=positions
        ).last_hidden_state
        logs = model.lm_head(states).log_softmax(-1)[:, :-1]
    labels = chunk.labels[:, 1:]
    gold = logs.gather(-1, labels.clamp_min(0)[..., None])[..., 0] * (labels != -100)
    assert [one.likelihood for one in blind(model, chunk)] == pytest.approx(gold.sum(1).tolist(), abs=1e-3)


def test_the_model_is_left_as_it_was(setting):
    model = setting[0]
    assert "get_image_features" not in vars(model.model)
    assert not model.model.language_model.layers[2]._forward_pre_hooks


def test_a_row_never_drops_a_task_and_pairs_with_full(setting):
    samples = questions("validation", 16)
    full = [Answer(sample, True, -0.1, None, math.nan, math.nan) for sample in samples]
    found = [Answer(s, s.task != "reading", -0.5, [0, 1], 1e9, 100.0) for s in samples]
    made = row("dive", 2, found, full, 1.0, [0.5])
    assert len(made["tasks"]) == 8
    assert made["tasks"]["reading"]["accuracy"] == 0
    assert made["relative"] == pytest.approx(87.5)
    assert made["below_full"] == pytest.approx(made["accuracy"] - 100)
    assert made["likelihood"] == pytest.approx(-0.5)
    assert made["gflops"] == pytest.approx(1.0)


def test_the_hit_rate_counts_objects_that_kept_a_patch():
    sample = next(s for s in questions("validation", 40) if len(s.question.items) == 2)
    one, two = (sample.scene.patches(index) for index in sample.question.items)
    hit = [hit_rate(Answer(sample, True, 0.0, kept, 0.0, 0.0)) for kept in ([], one[:1], [one[0], two[-1]], None)]
    assert hit == [0, 0.5, 1, None]


def test_random_and_grid_are_always_compared_and_settings_are_read():
    assert {name for name, _ in contenders(["dive:layer=3"], [8, 4])} == {"dive:layer=3", "random", "grid"}
    assert contenders(["dive:layer=3:eta=0.5"], [8])["dive:layer=3:eta=0.5", 8].layer == 3
    assert parse("dive:norm=none") == ("dive", {"norm": "none"})
    assert parse("dart:faithful=False") == ("dart", {"faithful": False})
    with pytest.raises(ValueError, match="method must be NAME or NAME:option=value"):
        parse("dive:layer")


def test_majority_is_low_where_answers_are_balanced():
    levels = majority(questions("validation", 800))
    assert levels["existence"] <= 51
    assert levels["counting"] <= 27


def test_auc_and_rank_on_cases_with_known_values():
    assert auc(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, False, True])) == 1
    assert auc(torch.tensor([1.0, 1.0]), torch.tensor([False, True])) == 0.5
    assert math.isnan(auc(torch.tensor([1.0]), torch.tensor([True])))
    assert effective_rank(torch.eye(7)) == pytest.approx(7)
    assert effective_rank(torch.ones(9, 4)) == pytest.approx(1)


def test_geometry_reports_all_its_figures(setting):
    model, processor, samples, _ = setting
    found = geometry(model, processor, samples[:4])
    assert set(found) == {"rank", "background", "objects", "auc"}
    assert 1 <= found["rank"] <= 32
    assert 0 <= found["auc"] <= 1


def test_tokens_that_a_counting_word_looks_at_take_the_places_of_the_last_picks(setting):
    model, processor, _, _ = setting
    some = [sample for sample in questions("validation", 40) if sample.task == "counting"][:3]
    (chunk,) = chunks(some, processor, scenes=3)
    look(model, chunk)
    looks, counted = counting.gaze(model, some)
    assert counted.any(dim=2).sum(dim=1).tolist() == [int(sample.answer) for sample in some]
    instead = tuple(map(tuple, looks.topk(2, dim=1).indices.tolist()))
    numbers, kept = counting.told(model, chunk, counting.Swapped(keep=8, instead=instead))
    _, plain = counting.told(model, chunk, counting.Swapped(keep=8, instead=((),) * 3))
    assert all(1 <= number <= 4 for number in numbers)
    assert plain == [one.kept for one in answer(model, chunk, method_of("dive", 8, {}))]
    for tokens, these, others in zip(kept, instead, plain, strict=True):
        assert len(tokens) == 8
        assert set(these) <= set(tokens) <= {*these, *others}
    row, more = counting.measure(model, processor, some, 8, [0, 2])
    assert row["right"] + row["too low"] + row["too high"] == pytest.approx(100)
    assert (row["swap"], more["swap"]) == (0, 2)
