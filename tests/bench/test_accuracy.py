"""divevlm bench accuracy: figures of a row, and that the published ones stay."""

import json
from pathlib import Path

import pytest
import torch
from divevlm_tiny import available
from divevlm_tiny.splits import clip_questions, questions

from divevlm.bench.accuracy import Mark, chunks, contenders, hit_rate, majority, measure, row, visual_states
from divevlm.core.metrics import redundancy
from divevlm.experiments.answering import Answerer
from divevlm.experiments.settings import Setting
from divevlm.experiments.tasks import item_of
from divevlm.methods import parse
from tests.micro import micro_llava

PUBLISHED = Path(__file__).parents[2] / "results" / "accuracy" / "seed0.json"


@pytest.fixture(scope="module")
def micro_model():
    return micro_llava()


@pytest.mark.skipif("llava" not in available(), reason="the embedded model is not in this copy")
def test_the_published_answers_stay():
    published = {(row["method"], row["keep"]): row for row in json.loads(PUBLISHED.read_text())["rows"]}
    rows = measure(["dive", "farthest"], [16], n=8)["rows"]
    assert len(rows) == 6
    for fresh in rows:
        before = published[fresh["method"], fresh["keep"]]
        assert fresh["right"] == before["right"][:8]
        assert set(fresh) == set(before)
    assert len({fresh["right"] for fresh in rows}) == 6


@pytest.mark.skipif("qwen2vl" not in available(), reason="the embedded model is not in this copy")
@pytest.mark.parametrize("clips", [False, True])
def test_the_other_embedded_model_is_asked_about_pictures_of_all_sizes_and_about_clips(clips):
    result = measure(["dive"], [0.3], n=8, model="qwen2vl", clips=clips)
    full, dive, *_ = result["rows"]
    assert (full["method"], dive["method"], dive["keep"]) == ("vanilla", "dive", 0.3)
    assert full["accuracy"] > dive["accuracy"] - 20
    assert ("motion" in full["tasks"]) == clips
    assert dive["hit_rate"] is None
    assert 0 < dive["redundancy"] < 1
    assert next(len(each) for each in chunks(clip_questions("validation", 40))) < 40


def test_a_row_never_drops_a_task_and_pairs_with_full():
    samples = questions("validation", 16)
    full = [Mark(sample, True, -0.1) for sample in samples]
    marks = [Mark(s, s.task != "reading", -0.5, 0.25, [0, 1], 0.5, 1e9, 100.0) for s in samples]
    figures = row("dive", 2, marks, full)
    assert len(figures["tasks"]) == 8
    assert figures["tasks"]["reading"]["accuracy"] == 0
    assert figures["relative"] == pytest.approx(87.5)
    assert figures["below_full"] == pytest.approx(figures["accuracy"] - 100)
    assert figures["likelihood"] == pytest.approx(-0.5)
    assert (figures["gflops"], figures["tokens"], figures["redundancy"], figures["seconds"]) == (1, 100, 0.5, 4)
    assert row("vanilla", 0, full, full)["gflops"] is None


def test_the_hit_rate_counts_objects_that_kept_a_patch():
    sample = next(s for s in questions("validation", 40) if len(s.question.items) == 2)
    one, two = (sample.scene.patches(index) for index in sample.question.items)
    hits = [hit_rate(Mark(sample, True, 0.0, kept=kept)) for kept in ([], one[:1], [one[0], two[-1]], None)]
    assert hits == [0, 0.5, 1, None]


def test_random_and_grid_are_always_compared_and_settings_are_read():
    assert {setting.method for setting in contenders(["dive:layer=3"], [8, 4])} == {"dive:layer=3", "random", "grid"}
    assert contenders(["dive:layer=3:eta=0.5"], [8])[0] == Setting("dive:layer=3:eta=0.5", 8)
    assert parse("dive:norm=none") == ("dive", {"norm": "none"})
    assert parse("dart:faithful=False") == ("dart", {"faithful": False})
    with pytest.raises(ValueError, match="method must be NAME or NAME:option=value"):
        contenders(["dive:layer"], [8])


def test_questions_about_a_scene_stay_together():
    samples = questions("validation", 40)
    first, second = chunks(samples)
    assert first + second == samples
    assert len({sample.scene.seed for sample in first}) == 8
    assert not {sample.scene.seed for sample in first} & {sample.scene.seed for sample in second}


def test_redundancy_is_measured_on_states_of_a_full_run(micro_model):
    answerer = Answerer(*micro_model)
    items = [item_of(sample, str(sample.number)) for sample in questions("validation", 4)]
    with visual_states(answerer, items) as states:
        answerer.forced(items, None)
    assert [x.shape for x in states] == [(576, 32)] * 4
    assert torch.allclose(states[0], states[1], atol=1e-5)  # of one picture
    method = Setting("dive", 8).ready(answerer.model)
    (answered, *_) = answerer.forced(items, method)  # DIVE cuts there
    order = answerer.report.samples[0].order
    assert answered.redundancy == pytest.approx(redundancy(states[0], torch.tensor(order)), abs=1e-5)
    assert not answerer.model.model.language_model.layers[2]._forward_pre_hooks


def test_majority_is_low_where_answers_are_balanced():
    levels = majority(questions("validation", 800))
    assert levels["existence"] <= 51
    assert levels["counting"] <= 27
