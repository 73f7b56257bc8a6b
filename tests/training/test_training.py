"""Training goes on after a stop as if there had been none, and its parts do what they say."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch
from divevlm_tiny import build
from divevlm_tiny.ask import NamedScene, count
from divevlm_tiny.scene import scene
from divevlm_tiny.words import CHARACTERS, COLORS, SHAPES, SIGN, vocabulary
from PIL import Image

from training import curve
from training.batches import IGNORE, Phase, asked_of, batch, patch_labels
from training.forward import losses
from training.hints import Heads
from training.loop import at, train
from training.muon import optimizers, orthogonal
from training.start import shift, waves

from .test_forward import MICRO, NUMBERS

PHASES = (Phase("look", 6, 2, 0, 3), Phase("ask", 6, 2, 3, 4, (1.0, 0.1)))


def run(folder, stop=None, half=False):
    torch.manual_seed(0)
    model = build.llava(MICRO)
    heads = Heads(32, 24)
    reached = train(
        {"model": model, "heads": heads},
        optimizers(model, heads, 0.02, 3e-3),
        PHASES,
        lambda phase, step: batch(NUMBERS, phase, 0, step),
        partial(losses, model, heads, NUMBERS),
        folder,
        stop=stop,
        workers=0,
        half=half,
    )
    return reached, model.state_dict()


def test_a_run_that_was_stopped_ends_where_an_uninterrupted_one_does(tmp_path):
    _, whole = run(tmp_path / "whole")
    assert run(tmp_path / "parts", stop=2)[0] == 2
    assert run(tmp_path / "parts", stop=5)[0] == 5
    reached, parts = run(tmp_path / "parts")
    assert reached == 7
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert run(tmp_path / "parts")[0] == 7  # nothing is left to do


def test_half_rounds_the_products_and_keeps_the_weights_whole(tmp_path):
    whole, half = (run(tmp_path / str(half), stop=1, half=half)[1] for half in (False, True))
    assert {value.dtype for value in half.values()} == {torch.float32}
    assert any(not torch.equal(whole[name], half[name]) for name in whole)
    weight = torch.nn.Linear(64, 64)
    seen = []

    def loss(made):
        product = weight(made["x"])
        seen.append(product)
        return product.float().square().mean(), {"right": {}}

    def trained(folder, half):
        step = torch.optim.SGD(weight.parameters(), 0.0)
        made = {"x": torch.ones(2, 64)}
        train({"m": weight}, [step], PHASES, lambda *_: made, loss, folder, stop=1, workers=0, half=half)
        return seen[-1]

    exact, rounded = trained(tmp_path / "a", False), trained(tmp_path / "b", True)
    assert (exact.dtype, rounded.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(rounded.float(), exact, atol=0.02, rtol=0.02)


def test_the_rate_follows_its_phase():
    assert at(PHASES, 0) == (PHASES[0], 1.0)
    phase, factor = at(PHASES, 5)
    assert phase.name == "ask"
    assert factor == pytest.approx(0.55)
    with pytest.raises(ValueError, match="step must be before the end of the schedule"):
        at(PHASES, 7)


def test_a_batch_depends_on_nothing_but_its_numbers():
    phase = Phase("test", 8, 3, 4, 1)
    one, same, other = batch(NUMBERS, phase, 1, 2), batch(NUMBERS, phase, 1, 2), batch(NUMBERS, phase, 1, 3)
    assert torch.equal(one["pixels"], same["pixels"])
    assert torch.equal(one["ids"], same["ids"])
    assert not torch.equal(one["pixels"], other["pixels"])


def test_windows_stand_at_their_true_places():
    made = batch(NUMBERS, replace(PHASES[0], rows=8, batch=20), 0, 0)
    places = made["places"].view(20, 8, 8)
    assert (places[:, 1:] - places[:, :-1] == 24).all()
    assert (places[:, :, 1:] - places[:, :, :-1] == 1).all()
    assert len(set(places[:, 0, 0].tolist())) > 10


def test_patch_labels_name_the_object_under_a_patch():
    picture = scene(11)
    labels = patch_labels(picture)
    for index, item in enumerate(picture.items):
        cells = picture.cover(index).ravel()
        full = cells == 16 * 14 * 14
        assert (labels["color"][full] == COLORS.index(item.color) + 1).all()
        assert (labels["shape"][full] == (*SHAPES, SIGN).index(item.shape) + 1).all()
        if item.text:
            shown = labels["character"][cells > 0]
            letters = {CHARACTERS[number - 1].lower() for number in shown[shown > 0]}
            assert letters <= set(item.text)
    nothing = sum(picture.cover(index).ravel() for index in range(len(picture.items))) == 0
    assert all((labels[kind][nothing] == 0).all() for kind in labels)
    assert set(labels["shape"].tolist()) <= {IGNORE, *range(10)}


def test_muon_updates_have_singular_values_of_about_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 20, 50)))
    assert values.min() > 0.4
    assert values.max() < 1.4


def test_a_shift_of_waves_is_the_waves_of_the_neighbour():
    row, column = torch.tensor([3.0, 7.0]), torch.tensor([5.0, 20.0])
    torch.testing.assert_close(waves(row, column) @ shift(1, -2).T, waves(row + 1, column - 2), atol=1e-5, rtol=1e-5)


def test_the_vocabulary_has_no_word_twice():
    words = vocabulary(build.IMAGE, clips=True)
    assert len(set(words)) == len(words)


def test_the_curve_of_a_run_is_drawn_with_the_tasks_that_it_has(tmp_path):
    lines = [
        {"step": 20 * i, "phase": "look" if i < 2 else "ask8", "minutes": i, "accuracy": {"patch shape": 0.1 * i}}
        for i in range(1, 4)
    ]
    lines[2]["accuracy"]["motion"] = 0.5
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve.main([str(tmp_path / "log.jsonl"), str(tmp_path / "curve.png")])
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.width > 2 * picture.height


def test_a_phase_can_count_every_kind_that_a_picture_shows():
    shown = NamedScene(scene(7))
    kinds = {**shown.shapes, **shown.colors}
    phase = Phase("test", 24, 1, 1, 1, every=True)
    asked = [q for seed in range(20) for q in asked_of(shown, phase, Random(seed), Counter()) if q.task == "counting"]
    assert {q.text for q in asked} >= {count(shown, name, "").text for name, n in shown.shapes.items() if n in (3, 4)}
    assert all(int(q.answer) == len(q.items) <= 4 for q in asked)
    assert len({q.text for q in asked}) == sum(n <= 4 for n in kinds.values())
