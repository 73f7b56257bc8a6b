"""Every fast path makes the picks of Algorithm 1."""

import pytest
import torch

import divevlm
from divevlm.core.reference import reference_select
from divevlm.core.rule import Rule
from tests.core.oracle import KINDS, assert_right, states

PATHS = [("gram", "eager"), ("picked", "eager"), ("gram", "fused"), ("picked", "fused")]
RULES = {
    "default": {},
    "no-language": {"lam": 0.0},
    "no-visual": {"score": "prompt"},
    "no-update": {"updates": 0},
    "two-updates": {"updates": 2},
    "five-updates-all": {"updates": 5, "feedback": "all"},
    "two-sided": {"two_sided": True, "eta": 1.0},
    "raw-rows": {"normalize": False, "lam": 0.0, "two_sided": True, "eta": 1.0},
    "strong": {"lam": 3.0, "eta": 1.2},
    "opposed-to-prompt": {"lam": -1.5},
    "h1": {"top_h": 1},
    "h2": {"top_h": 2},
    "h5": {"top_h": 5},
    "h-all": {"top_h": 1000},
}


@pytest.mark.parametrize(("columns", "loop"), PATHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "d", "m", "keep"), [(40, 24, 7, 12), (300, 64, 12, 40), (33, 8, 1, 33)])
def test_picks(kind, n, d, m, keep, columns, loop):
    x, q = states(kind, n, d, m)
    picks = divevlm.select(x, q, keep, columns=columns, loop=loop)
    assert_right(x, q, picks)


@pytest.mark.parametrize(("columns", "loop"), PATHS)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_rules(name, kind, columns, loop):
    rule = RULES[name]
    x, q = states(kind, 120, 48, 9, seed=1)
    if name == "raw-rows":
        x *= torch.linspace(0.1, 3, 120)[:, None]
    picks = divevlm.select(x, q, 30, columns=columns, loop=loop, **rule)
    assert_right(x, q, picks, Rule(**rule))
    assert picks.order.tolist() == reference_select(x, q, 30, Rule(**rule), dtype=torch.float64).order.tolist()


@pytest.mark.parametrize(("columns", "loop"), PATHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_and_strides(dtype, columns, loop):
    x, q = states("clustered", 100, 700, 6)
    x, q = x.to(dtype), q.to(dtype)
    expected = reference_select(x.double(), q.double(), 20).order.tolist()
    strided_x, strided_q = x.T.contiguous().T, torch.cat([q, q], dim=1)[:, : q.shape[1]]
    for a, b in ((x, q), (strided_x, strided_q), (x.requires_grad_(), q)):
        picks = divevlm.select(a, b, 20, columns=columns, loop=loop)
        assert picks.order.tolist() == expected
        assert picks.scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert not picks.scores.requires_grad


@pytest.mark.parametrize(("columns", "loop"), PATHS)
def test_float64_is_worked_in_float64(columns, loop):
    x, q = states("low-rank", 60, 30, 5)
    x, q = x.double(), q.double()
    picks = divevlm.select(x, q, 12, columns=columns, loop=loop)
    assert_right(x, q, picks, dtype=torch.float64)


@pytest.mark.parametrize(("columns", "loop"), PATHS)
@pytest.mark.parametrize("rule", [{}, {"lam": 0.0}, {"updates": 3}])
def test_trace(rule, columns, loop):
    x, q = states("clustered", 50, 20, 6)
    trace = divevlm.select(x, q, 10, trace=True, columns=columns, loop=loop, **rule).trace
    expected = reference_select(x, q, 10, Rule(**rule), dtype=torch.float64, trace=True).trace
    for name in ("scores", "alignment", "energy", "query_energy"):
        mine, theirs = getattr(trace, name), getattr(expected, name)
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.double(), theirs, atol=3e-5, rtol=1e-4)


def test_tracing_does_not_change_the_picks():
    x, q = states("clustered", 200, 40, 8)
    for rule in ({}, {"lam": 0.0}):
        plain, traced = (divevlm.select(x, q, 50, trace=trace, **rule) for trace in (False, True))
        assert plain.trace is None
        assert plain.order.tolist() == traced.order.tolist()


def test_the_maintained_cross_similarities_are_those_of_the_residuals():
    from divevlm.core.reference import Residuals

    x, q = states("clustered", 30, 16, 5)
    state = Residuals(x.double(), q.double(), Rule())
    for s in (3, 17, 8):
        state.feed_back(s)
        torch.testing.assert_close(state.cross, state.q @ state.x.T)
