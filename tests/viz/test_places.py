"""A token is drawn where the model looked: a mark on the picture changes most the token whose cell holds it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from divevlm.media import Video
from divevlm.methods import method_of
from divevlm.models import family_of
from divevlm.models.base import View, Visual
from divevlm.models.llava_next import LlavaNext
from divevlm.models.places import centre_crop, tiling
from divevlm.prompts import Prompt, inputs
from divevlm.viz.asking import ask
from divevlm.viz.places import Grid, panels
from tests.zoo import FAMILIES, VIDEO_FAMILIES, build

SIZES = [(168, 168), (240, 120), (100, 180)]


def local(name):
    """A model of the family whose tower can't look around: a token is what its own patches show."""
    entry = build(name, fresh=True)
    family = family_of(entry.model)
    outputs = ("self_attn.out_proj", "attn.proj", "attention.projection_layer", "attention.o_proj")
    found = [m for n, m in family.at(entry.model, family.tower).named_modules() if n.endswith(outputs)]
    assert found
    for module in found:
        torch.nn.init.zeros_(module.weight)
    return entry


def visual_rows(entry, media):
    """What enters the language model at the visual positions."""
    seen = []
    family = family_of(entry.model)
    arguments = inputs(entry.processor, family, [Prompt.of("what ?", media)])
    text = family.at(entry.model, family.text)
    handle = text.register_forward_pre_hook(
        lambda m, a, k: seen.append(k["inputs_embeds"][0].clone()), with_kwargs=True
    )
    with torch.no_grad():
        entry.model(**arguments)
    handle.remove()
    ids = torch.tensor(sorted(family.token_ids(entry.model.config).values()))
    return seen[0][torch.isin(arguments["input_ids"][0], ids)]


def placed(entry, media):
    asked = ask(entry.model, entry.processor, "what ?", media, [("dive", method_of("dive", 3, {}))], max_new_tokens=1)
    return asked.panels


def plain(size):
    return np.full((size[1], size[0], 3), 120, dtype=np.uint8)


def marked(canvas, box):
    """The middle of a cell in white."""
    height, width = canvas.shape[:2]
    left, top, wide, high = box
    rows = slice(round((top + 0.2 * high) * height), max(1, round((top + 0.8 * high) * height)))
    columns = slice(round((left + 0.2 * wide) * width), max(1, round((left + 0.8 * wide) * width)))
    drawn = canvas.copy()
    drawn[rows, columns] = 255
    return drawn


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llava_576"])
def test_images(name, size):
    entry = local(name)
    canvas = plain(size)
    shown = placed(entry, [Image.fromarray(canvas)])
    before = visual_rows(entry, [Image.fromarray(canvas)])
    for panel in shown:
        places = panel.cells()
        for token in list(places)[:: max(1, len(places) // 5)]:
            after = visual_rows(entry, [Image.fromarray(marked(canvas, places[token]))])
            change = (after - before).norm(dim=-1)
            most = max(places, key=lambda other: change[other])
            assert most == token, f"{panel.label}: marked {token} {places[token]}, changed {most} {places[most]}"


@pytest.mark.parametrize("name", VIDEO_FAMILIES)
def test_videos(name):
    entry = local(name)
    frames = np.stack([plain((120, 120))] * 4)

    def clip(drawn):
        return [Video(drawn, list(range(4)), 4, 2.0)]

    shown = placed(entry, clip(frames))
    before = visual_rows(entry, clip(frames))
    places = {token: box for panel in shown for token, box in panel.cells().items()}
    each = 4 // len(shown)
    for number, panel in enumerate(shown):
        token, box = list(panel.cells().items())[number % len(panel.cells())]
        drawn = frames.copy()
        for frame in range(number * each, (number + 1) * each):
            drawn[frame] = marked(frames[frame], box)
        change = (visual_rows(entry, clip(drawn)) - before).norm(dim=-1)
        assert max(places, key=lambda other: change[other]) == token


def test_several_images_and_padding():
    entry = build("llava_onevision")
    canvases = [plain((120, 60)), plain((60, 120))]
    shown = placed(entry, [Image.fromarray(canvas) for canvas in canvases])
    assert [panel.picture.size for panel in shown] == [(120, 120), (120, 120)]  # as the model sees them
    entry = build("llava")
    shown = placed(entry, [Image.fromarray(canvas) for canvas in canvases])
    assert [panel.label for panel in shown] == ["image 1", "image 2"]
    assert shown[0].grids[0].box == (0.25, 0, 0.5, 1)
    assert shown[1].grids == (Grid(16, 4, 4, False, (0, 0.25, 1, 0.5)),)


def test_what_a_processor_cuts_off():
    def part(**given):
        return SimpleNamespace(
            **({"do_center_crop": True, "crop_size": {"height": 20}, "size": {"shortest_edge": 25}} | given)
        )

    assert centre_crop(part(), (200, 100)) == pytest.approx((0.3, 0.1, 0.4, 0.8))
    assert centre_crop(part(do_center_crop=False), (200, 100)) == (0, 0, 1, 1)
    assert centre_crop(part(size={"height": 20, "width": 20}), (200, 100)) == (0, 0, 1, 1)  # squeezed: nothing is lost
    assert centre_crop(None, (200, 100)) == (0, 0, 1, 1)


def test_newline_tokens_have_no_place():
    visual = Visual((View(2, 2), View(2, 3, view=1, newlines=True)))
    first, second = panels(LlavaNext(), None, [visual], [Image.new("RGB", (30, 20))])
    assert list(first.cells()) == [0, 1, 2, 3]
    assert list(second.cells()) == [4, 5, 6, 8, 9, 10]
    assert second.cells()[9] == pytest.approx((1 / 3, 0.5, 1 / 3, 0.5))


@pytest.mark.parametrize(
    ("tiles", "size", "exact", "pair"),
    [(8, (1000, 260), False, (2, 4)), (4, (400, 90), False, (1, 4)), (16, (500, 500), False, (4, 4)),
     (6, (300, 200), True, (2, 3)), (6, (200, 200), True, (3, 2)), (2, (100, 300), True, (2, 1))],
)  # fmt: skip
def test_rows_and_columns_of_tiles(tiles, size, exact, pair):
    assert tiling(tiles, size, exact) == pair
