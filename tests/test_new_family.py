"""A new family is one class and one line of the registry: nothing else knows families by name."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import divevlm
from divevlm.cli import main
from divevlm.media import Video
from divevlm.methods import method_of
from divevlm.models import FAMILIES, family_of
from divevlm.models.llava import Llava
from divevlm.models.places import Place
from divevlm.prompts import Prompt, inputs
from divevlm.viz import ask
from tests.zoo import build, picture

SOURCES = Path(divevlm.__file__).parent


class Mirror(Llava):
    """Shows the left half of a picture, and wants the images of each prompt in a list."""

    name = "mirror_vlm"
    checkpoints = ("somebody/mirror-7b",)
    about = "half a view"
    nested_images = True
    default_layer = 1

    def places(self, processor, views, size):
        return [Place("left half", (0.0, 0.0, 0.5, 1.0))]


@pytest.fixture
def model(monkeypatch):
    """A tiny LLaVA whose config says that it is of the new family."""
    monkeypatch.setattr(FAMILIES, "_entries", dict(FAMILIES._entries))
    FAMILIES.add("mirror_vlm", Mirror)
    entry = build("llava", fresh=True)
    monkeypatch.setattr(type(entry.model.config), "model_type", "mirror_vlm")
    return entry


def test_it_is_planned(model):
    plan = divevlm.plan("dive", model.model, keep=5)
    assert plan.tokens_per_layer[:2] == [16, 5]  # its own default cut


def test_it_stands_in_the_table(model, capsys):
    main(["models", "--markdown"])
    assert "| `mirror_vlm` | half a view |  | 1 | somebody/mirror-7b |" in capsys.readouterr().out
    main(["models", "--json"])
    assert "mirror_vlm" in [row["family"] for row in json.loads(capsys.readouterr().out)["rows"]]


def test_its_prompts_are_built_as_it_says(model):
    family, seen = family_of(model.model), []

    class Spy:
        chat_template, tokenizer = model.processor.chat_template, model.processor.tokenizer
        apply_chat_template = model.processor.apply_chat_template

        def __call__(self, **given):
            seen.append(given)

    pictures = [picture(1, 40, 40), picture(2, 40, 40)]
    inputs(Spy(), family, [Prompt.of("what ?", pictures[:1]), Prompt.of("and ?", pictures[1:])])
    assert seen[0]["images"] == [pictures[:1], pictures[1:]]
    assert seen[0]["padding_side"] == "left"
    video = Video(np.zeros((2, 8, 8, 3), np.uint8), [0, 1], 2, 1.0)
    with pytest.raises(ValueError, match="model must be of a family that takes videos, for these, got 'mirror_vlm'"):
        inputs(Spy(), family, [Prompt.of("what ?", [video])])


def test_its_tokens_are_drawn_where_it_says(model):
    shown = [Image.new("RGB", (60, 60))]
    comparison = ask(
        model.model, model.processor, "what ?", shown, [("dive", method_of("dive", 3, {}))], max_new_tokens=1
    )
    (panel,) = comparison.panels
    assert (comparison.family, panel.label) == ("mirror_vlm", "image, left half")
    assert torch.tensor(list(panel.cells().values()))[:, 0].max() < 0.5


def test_no_other_file_knows_a_family_by_name():
    """Outside models/, no name of a family stands in quotes (llava and qwen2vl are embedded models, qwen2_vl also a model of
    lmms-eval)."""
    names = "|".join(sorted(set(FAMILIES) - {"llava"}))
    found = {
        str(path.relative_to(SOURCES)): match[0]
        for path in SOURCES.rglob("*.py")
        if "models" not in path.relative_to(SOURCES).parts[:1]
        for match in re.finditer(rf"[\"']({names})[\"']", path.read_text())
    }
    assert found == {"experiments/stock.py": '"qwen2_vl"'}
