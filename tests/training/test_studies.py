"""The studies of the embedded model: geometry of its states, and where counting words look."""

import math

import pytest
import torch
from divevlm_tiny.splits import questions

from divevlm.experiments.answering import Answerer
from divevlm.experiments.tasks import item_of
from divevlm.methods import method_of
from tests.micro import micro_llava
from training import counting
from training.geometry import auc, effective_rank, geometry


@pytest.fixture(scope="module")
def micro_model():
    return micro_llava(8)


def test_auc_and_rank_on_cases_with_known_values():
    assert auc(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, False, True])) == 1
    assert auc(torch.tensor([1.0, 1.0]), torch.tensor([False, True])) == 0.5
    assert math.isnan(auc(torch.tensor([1.0]), torch.tensor([True])))
    assert effective_rank(torch.eye(7)) == pytest.approx(7)
    assert effective_rank(torch.ones(9, 4)) == pytest.approx(1)


def test_geometry_reports_all_its_figures(micro_model):
    figures = geometry(*micro_model, questions("validation", 4))
    assert set(figures) == {"rank", "background", "objects", "auc"}
    assert 1 <= figures["rank"] <= 32
    assert 0 <= figures["auc"] <= 1


def test_tokens_that_a_counting_word_looks_at_take_the_places_of_the_last_picks(micro_model):
    model, processor = micro_model
    some = [sample for sample in questions("validation", 40) if sample.task == "counting"][:3]
    answerer, items = Answerer(model, processor), [item_of(sample, str(sample.number)) for sample in some]
    looks, counted = counting.gaze(model, some)
    assert counted.any(dim=2).sum(dim=1).tolist() == [int(sample.answer) for sample in some]
    instead = tuple(map(tuple, looks.topk(2, dim=1).indices.tolist()))
    numbers, kept = counting.told(answerer, items, counting.Swapped(keep=8, instead=instead))
    _, plain = counting.told(answerer, items, counting.Swapped(keep=8, instead=((),) * 3))
    assert all(1 <= number <= 4 for number in numbers)
    answerer.forced(items, method_of("dive", 8, {}))
    assert plain == [sample.kept for sample in answerer.report.samples]
    for tokens, these, others in zip(kept, instead, plain, strict=True):
        assert len(tokens) == 8
        assert set(these) <= set(tokens) <= {*these, *others}
    row, more = counting.measure(model, processor, some, 8, [0, 2])
    assert row["right"] + row["too low"] + row["too high"] == pytest.approx(100)
    assert (row["swap"], more["swap"]) == (0, 2)
