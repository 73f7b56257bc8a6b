"""dive-plus: a prompt that keeps its say at the first cut, DIVE at the second, and a budget that says what it costs."""

import pytest
import torch

import divevlm
from divevlm.methods import METHODS, method_of
from divevlm.methods.dive_plus import DivePlus
from tests.methods.signals import choose, plain


def naive(x, q, keep, lam, eta, top_h):
    """Energies are explained away pick by pick, weights by the prompt are those of the start. float64"""
    x, q = (torch.nn.functional.normalize(z.double(), dim=-1) for z in (x, q))
    r = (q @ x.T).clamp_min(0).topk(min(top_h, len(q)), dim=0).values.mean(dim=0)
    weight = (lam * r / (r.max() + 1e-6)).exp()
    picks = []
    for _ in range(keep):
        score = weight * x.square().sum(dim=1)
        score[picks] = -1
        picks.append(int((score >= score.max() * (1 - 1e-6)).nonzero()[0]))  # equals: the lower index
        u = x[picks[-1]] / x[picks[-1]].norm()
        x = x - eta * torch.outer((x @ u).clamp_min(0), u)
    return picks


@pytest.mark.parametrize(("lam", "eta", "top_h"), [(3.0, 0.8, 3), (0.0, 0.8, 3), (1.5, 0.3, 1), (8.0, 1.0, 50)])
def test_the_first_cut_explains_visual_states_only(lam, eta, top_h):
    for seed in range(6):
        signals = plain(seed=seed)
        found = choose(DivePlus(keep=9, lam=lam, eta=eta, top_h=top_h), signals, 9)
        assert found.order.tolist() == naive(signals.visual, signals.text, 9, lam, eta, top_h)


def test_it_differs_from_dive_where_the_prompt_is_used_up():
    orders = [choose(method(keep=9), plain(), 9).order.tolist() for method in (DivePlus, divevlm.DIVE)]
    assert orders[0] != orders[1]


def test_the_second_cut_is_dive():
    signals = plain()
    signals.cut = 1
    wanted = divevlm.select(signals.visual, signals.text, 9).order.tolist()
    assert choose(DivePlus(keep=9), signals, 9).order.tolist() == wanted


@pytest.mark.parametrize("lam", [1e30, -1e30, 0])
def test_any_strength_and_no_prompt_at_all(lam):
    signals = plain()
    assert len(set(choose(DivePlus(keep=9, lam=lam), signals, 9).order.tolist())) == 9
    signals.text = signals.text[:0]
    wanted = naive(signals.visual, torch.zeros(1, 16), 9, 0, 0.8, 1)
    assert choose(DivePlus(keep=9, lam=lam), signals, 9).order.tolist() == wanted


def test_what_a_budget_means():
    plan = divevlm.plan("dive-plus", keep=64)
    assert plan.tokens_per_layer == [576] * 2 + [256] * 10 + [64] * 20
    assert plan.mean == divevlm.plan("dive", keep=128).mean
    assert (
        divevlm.plan("dive-plus", keep=64, first=1).tokens_per_layer == divevlm.plan("dive", keep=64).tokens_per_layer
    )
    for layers, keep in ((32, 64), (28, 120), (40, 100), (8, 200), (32, 400), (32, 500)):
        matched = divevlm.plan("dive-plus", keep=keep, layers=layers, match="layer-mean")
        assert matched.mean == pytest.approx(keep, abs=1)
    for keep, first in (
        (72, 288),
        (100, 288),
        (288, 288),
        (300, 300),
        (576, 576),
    ):  # at most half, never fewer than in the end
        assert divevlm.plan("dive-plus", keep=keep).details == {"stages": [first, keep]}
    for between, later in ((0.001, 3), (1 / 3, 12), (0.5, 17), (0.999, 31)):
        lengths = divevlm.plan("dive-plus", keep=8, between=between).tokens_per_layer
        assert lengths == [576] * 2 + [32] * (later - 2) + [8] * (32 - later)
    few = divevlm.plan("dive-plus", keep=8, layers=4)
    assert few.tokens_per_layer == [576] * 2 + [8] * 2


@pytest.mark.parametrize("blocks", range(4, 41))
@pytest.mark.parametrize("default", [0, 1, 2, 3])
def test_it_ends_with_what_was_asked_for_in_a_model_of_any_depth(blocks, default):
    method = DivePlus(keep=10)
    cuts = method.blocks(blocks, default)
    assert list(cuts) == sorted(set(cuts))
    assert cuts[-1] < blocks
    assert method.stay(len(cuts) - 1, 10, 100, blocks) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"between": 1.0}, "between must be a number between 0 and 1, got 1.0"),
        ({"first": 0.5}, "first must be a number from 1 to 100, got 0.5"),
        ({"first": float("nan")}, "first must be a number from 1 to 100, got nan"),
        ({"layer": 3}, "layer must be None for dive-plus, which cuts at several blocks, got 3"),
        ({"eta": 2}, "eta must be a number between 0 and 2"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        method_of("dive-plus", 8, options)
    assert "dive-plus" in METHODS


def test_a_mean_that_can_not_be():
    with pytest.raises(ValueError, match="^keep must be at least 37.88 as a mean with a first cut at block 2, got 36"):
        divevlm.plan("dive-plus", keep=36, match="layer-mean")
