"""Pictures show what the numbers say: pixels of rendered figures are read at the cells' centres."""

import numpy as np
import pytest
import torch
from PIL import Image

from divevlm.core.metrics import relative_gold_likelihood
from divevlm.media import Video
from divevlm.methods import method_of
from divevlm.viz import (
    ask,
    evolution,
    feedback_boxes,
    gallery,
    heat_map,
    kept,
    masks,
    performance_latency,
    redundancy_densities,
    rendered,
    settings,
)
from tests.zoo import build, clip, picture

GREY = (200, 200, 200)


class Drawn:
    """A rendered figure: what colour is there?"""

    def __init__(self, figure):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure.dpi = 150
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        self.figure, self.pixels = figure, np.asarray(canvas.buffer_rgba())[..., :3].astype(int)

    def colour(self, axes, box):
        left, top, wide, high = box
        x, y = axes.transData.transform((left + wide / 2, top + high / 2))
        return self.pixels[self.pixels.shape[0] - 1 - int(y), int(x)]


def answers(name, media, methods, question="what ?"):
    entry = build(name)
    return ask(entry.model, entry.processor, question, media, methods, max_new_tokens=1)


def bright(colour):
    return colour.mean() > 150


MEDIA = {
    "llava_576": [Image.new("RGB", (300, 200), GREY)],
    "llava_next": [Image.new("RGB", (160, 90), GREY)],
    "qwen2_vl": [Image.new("RGB", (160, 90), GREY)],
    "idefics3": [Image.new("RGB", (160, 90), GREY)],
    "llava_onevision": [Video(np.full((4, 64, 96, 3), 200, np.uint8), list(range(4)), 4, 2.0)],
}


@pytest.mark.parametrize("name", MEDIA)
def test_kept_cells_stay_bright_where_the_indices_say(name):
    asked = answers(name, MEDIA[name], [("dive", method_of("dive", 4, {})), ("random", method_of("random", 4, {}))])
    drawn = Drawn(masks(asked))
    axes = drawn.figure.axes
    single = len(asked.panels) == 1
    for row, answer in enumerate(asked.answers):
        chosen = set(answer.report.samples[0].kept)
        for column, panel in enumerate(asked.panels):
            axis = axes[1 + row] if single else axes[row * len(asked.panels) + column]
            seen = {token for token, box in panel.cells().items() if bright(drawn.colour(axis, box))}
            assert seen == chosen & set(panel.cells())


def test_kept_of_one_method():
    asked = answers("llava_next", MEDIA["llava_next"], [("random", method_of("random", 4, {}))])
    drawn = Drawn(kept(asked))
    places = asked.panels[1].cells()
    seen = {token for token, box in places.items() if bright(drawn.colour(drawn.figure.axes[1], box))}
    assert seen == set(asked.answers[0].report.samples[0].kept) & set(places)


def test_heat_map_is_brightest_at_the_largest_value():
    asked = answers("qwen2_vl", MEDIA["qwen2_vl"], [("random", method_of("random", 4, {}))])
    (panel,) = asked.panels
    values = {token: float(token == 7) for token in panel.cells()}
    drawn = Drawn(heat_map(asked.panels, values))
    shades = {token: drawn.colour(drawn.figure.axes[0], box) for token, box in panel.cells().items()}
    assert max(shades, key=lambda token: shades[token][1]) == 7  # viridis ends in yellow
    assert len({tuple(shade) for token, shade in shades.items() if token != 7}) == 1


def test_gallery_colours_the_difference():
    asked = answers("llava_576", MEDIA["llava_576"], list(settings(["dive", "dive-no-update"], [40])))
    dive, frozen = asked.answers
    drawn = Drawn(gallery([(asked, frozen, dive)]))
    first, second = set(frozen.report.samples[0].order), set(dive.report.samples[0].order)
    names = {}
    for token, box in asked.panels[0].cells().items():
        red, green, blue = drawn.colour(drawn.figure.axes[4], box)
        white, orange = min(red, green, blue) > 240, red > 200 and blue < 60
        names[token] = "both" if white else "dive" if orange else "frozen" if blue > 150 and red < 60 else "none"
    assert {token for token, name in names.items() if name == "both"} == first & second
    assert {token for token, name in names.items() if name == "dive"} == second - first
    assert {token for token, name in names.items() if name == "frozen"} == first - second


def test_evolution_numbers_the_picks():
    shown = [Video(clip(0, 4, 96, 64), list(range(4)), 4, 2.0)]
    asked = answers("qwen2_vl", shown, list(settings(["dive"], [6])))
    figure = evolution(asked, asked.answers[0], steps=(1, 3, 6, 99))
    rows, columns = len(asked.panels), 3  # there is no step 99
    assert len(figure.axes) == rows * columns
    order = asked.answers[0].report.samples[0].order
    for column, step in enumerate((1, 3, 6)):
        texts = {}
        for row, panel in enumerate(asked.panels):
            places = panel.cells()
            for text in figure.axes[row * columns + column].texts:
                token = order[int(text.get_text()) - 1]
                assert text.get_position()[1] == pytest.approx(places[token][1] + places[token][3] / 2)
                texts[int(text.get_text())] = text
        assert sorted(texts) == list(range(1, step + 1))
    with pytest.raises(ValueError, match="trace=True"):
        evolution(asked, answers("qwen2_vl", shown, [("random", method_of("random", 4, {}))]).answers[0])


def test_plots():
    generator = torch.Generator().manual_seed(0)
    logs = torch.randn(40, 3, generator=generator).sort(dim=1).values
    relative = relative_gold_likelihood(logs).tolist()
    boxes = feedback_boxes(relative, [0, 4, 16], [50.0, 60.0, 65.0])
    medians = [line.get_ydata()[0] for line in boxes.axes[0].lines if line.get_color() == "#E69F00"]
    assert medians == pytest.approx([float(np.median([row[i] for row in relative])) for i in range(3)])
    curves = performance_latency(
        {"POPE": {"dive": [(2.0, 80.0, "128"), (1.0, 79.0, "64")], "vanilla": [(5.0, 81.0, "576")]}}
    )
    assert curves.axes[0].lines[0].get_xdata().tolist() == [1.0, 2.0]
    ridges = redundancy_densities(
        {0: {16: [0.9, 0.91, 0.92], 64: [0.95, 0.96, 0.94]}, 16: {16: [0.7, 0.71], 64: [0.8, 0.82]}}
    )
    peaks = [line.get_xdata()[np.argmax(line.get_ydata())] for line in ridges.axes[0].lines]
    assert peaks == pytest.approx([0.91, 0.95, 0.705, 0.81], abs=0.01)
    for figure in (boxes, curves, ridges):
        assert rendered(figure).startswith(b"\x89PNG")
        assert b"<svg" in rendered(figure, ".svg")
    with pytest.raises(ValueError, match=r"must be a \.png or \.svg file"):
        rendered(boxes, ".gif")


def test_odd_text_is_no_formula_and_no_warning():
    asked = answers(
        "llava", [picture(0, 60, 60)], [("random", method_of("random", 4, {}))], "costs $5 or $6_{x}? \x07\u4f60 & <b>"
    )
    asked.answers[0].text = "$\\frac{1}$ \u4f60"
    rendered(masks(asked))
