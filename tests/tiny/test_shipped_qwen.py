"""tiny-qwen2vl in the package: it loads by plain transformers, is small, and answers on pictures of all sizes and on clips."""

import json
from pathlib import Path

import pytest
import torch
from divevlm_tiny import build_qwen, clip_questions, load
from divevlm_tiny.build_qwen import END, START, VIDEO
from divevlm_tiny.shipped import MODELS
from divevlm_tiny.splits import SIZES
from transformers import AutoModelForImageTextToText, AutoProcessor, processing_utils
from transformers.utils import is_torchvision_available
from transformers.video_processing_utils import BaseVideoProcessor

from divevlm.experiments.answering import Answerer
from divevlm.experiments.tasks import CLIP_TASKS, TASKS, items, right
from divevlm.methods import method_of
from training.export import unpack
from training.loop import restore
from training.qwen_forward import QwenHeads

FLOOR = 0.7  # far above blind guessing, well below what the model card states


@pytest.fixture(scope="module")
def answerer():
    return Answerer(*load("qwen2vl"))


def test_it_loads_by_plain_from_pretrained_in_float32_and_keeps_to_its_limits():
    model = AutoModelForImageTextToText.from_pretrained(MODELS / "qwen2vl")
    assert model.dtype == torch.float32
    assert type(model).__name__ == "Qwen2VLForConditionalGeneration"
    assert sum(parameter.numel() for parameter in model.parameters()) <= 12_000_000
    assert (MODELS / "qwen2vl" / "model.safetensors").stat().st_size <= 25_000_000
    assert model.config.text_config.num_hidden_layers >= 8
    assert model.config.text_config.hidden_size >= 256


def test_no_path_of_a_machine_is_shipped():
    words = " ".join(path.read_text() for path in (MODELS / "qwen2vl").glob("*.json"))
    assert str(Path(__file__).parents[2]) not in words
    assert "_name_or_path" not in json.loads((MODELS / "qwen2vl" / "config.json").read_text())


def test_its_processor_is_saved_under_the_names_of_the_stock_classes(tmp_path):
    build_qwen.processor().save_pretrained(tmp_path)
    for name in ("processor_config.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == (MODELS / "qwen2vl" / name).read_text()


@pytest.mark.skipif(is_torchvision_available(), reason="torchvision is here")
def test_its_processor_needs_no_change_of_transformers():
    build_qwen.processor()
    base = processing_utils.MODALITY_TO_BASE_CLASS_MAPPING["video_processor"]
    assert not issubclass(BaseVideoProcessor, getattr(processing_utils.transformers_module, base, int))


@pytest.mark.skipif(not is_torchvision_available(), reason="the stock classes need torchvision")
def test_the_stock_processor_gives_the_same_inputs():
    sample = clip_questions("validation", 1)[0]
    stock, ours = AutoProcessor.from_pretrained(MODELS / "qwen2vl"), build_qwen.processor()
    given = [p(videos=[sample.frames], text=f"USER: {START}{VIDEO}{END}", return_tensors="pt") for p in (stock, ours)]
    assert given[0]["input_ids"].equal(given[1]["input_ids"])
    torch.testing.assert_close(given[0]["pixel_values_videos"], given[1]["pixel_values_videos"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("tasks", "each", "keep"), [(TASKS, 2, 0.4), (CLIP_TASKS, 4, 0.25)], ids=["pictures", "clips"])
def test_it_answers_most_questions_whole_and_pruned(answerer, tasks, each, keep):
    asked = items(tasks, each, sizes=SIZES)
    methods = (None, method_of("dive", keep, {}))
    scores = dict.fromkeys(methods, 0.0)
    for begin in range(0, len(asked), 8):
        for method in methods:
            scores[method] += sum(answer.score for answer in answerer.forced(asked[begin : begin + 8], method))
    assert min(scores.values()) >= FLOOR * len(asked)


def test_answers_are_scored_as_generate_gives_them(answerer):
    asked = items(("relation", "motion"), 1, sizes=SIZES)
    for item in asked:
        ((forced,), (generated,)) = answerer.forced([item], None), answerer.generate([item], None, 4)
        assert right(generated.prediction, item.gold) == forced.score


def test_training_can_go_on_from_the_shipped_files(tmp_path):
    unpack(MODELS / "qwen2vl", tmp_path)
    model = AutoModelForImageTextToText.from_pretrained(MODELS / "qwen2vl")
    heads = QwenHeads(model.config.text_config.hidden_size, model.config.vision_config.embed_dim)
    step, spent = restore(tmp_path, {"model": model, "heads": heads}, [])
    assert step > 2000
    assert spent > 3600
