"""The eager loop as a GPU sees it: few operations a pick, no wait for the device, and a graph that can be replayed."""

import importlib
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import divevlm
from divevlm.core import graph
from tests.core.oracle import assert_right, states

WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "masked_select",
    "equal",
    "item",
    "unique",
    "repeat_interleave",
)


class Operations(TorchDispatchMode):
    """Counts what is dispatched, views aside."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.seen[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def a_pick(x, q, **options):
    """Operations for one pick more."""
    seen = []
    for keep in (10, 30):
        with Operations() as operations:
            divevlm.select(x, q, keep, loop="eager", **options)
        seen.append(operations.seen)
    return Counter({name: (count - seen[0][name]) / 20 for name, count in seen[1].items() if count != seen[0][name]})


@pytest.mark.parametrize("columns", ["gram", "picked"])
@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 20), ({"two_sided": True}, 20), ({"score": "prompt"}, 20), ({"lam": 0.0}, 20), ({"lam": -1.0}, 22)],
    ids=str,
)
def test_at_most_twenty_operations_a_pick(columns, options, most):
    x, q = states("clustered", 100, 64, 9)
    count = a_pick(x, q, columns=columns, **options)
    assert 10 < count.total() <= most, count


@pytest.mark.parametrize("columns", ["gram", "picked"])
@pytest.mark.parametrize("options", [{}, {"updates": 3}, {"updates": 3, "feedback": "all"}, {"lam": -1.0}], ids=str)
def test_no_pick_waits_for_the_device(columns, options):
    x, q = states("clustered", 100, 64, 9)
    seen = a_pick(x, q, columns=columns, **options)
    assert not [name for name in seen if name in WAITS or "copy_to" in name]
    with Operations() as operations:
        divevlm.select(x, q, 10, loop="eager", columns=columns, check=False, **options)
    assert not [name for name in operations.seen if name in WAITS]


class Recorded(TorchDispatchMode):
    """As a CUDA graph does: notes every operation with the tensors it read and wrote, to repeat it on the same memory."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(
                torch.utils._pytree.tree_leaves(result), torch.utils._pytree.tree_leaves(again), strict=True
            ):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def capture(work):
    with Recorded() as recorded:
        work()
    return recorded.replay


@pytest.fixture
def captured(monkeypatch):
    """`select` takes the path of CUDA, with operations noted in place of a CUDA graph."""
    select = importlib.import_module("divevlm.core.select")
    monkeypatch.setattr(select, "_loop", lambda *_: "graph")
    monkeypatch.setattr(select, "graph_picks", lambda problem, way: graph.graph_picks(problem, way, capture))
    graph._store.loops.clear()
    yield
    graph._store.loops.clear()


@pytest.mark.parametrize("columns", ["gram", "picked"])
@pytest.mark.parametrize("options", [{}, {"lam": 0.0}, {"updates": 4}, {"score": "prompt"}], ids=str)
def test_a_graph_of_one_problem_solves_another(captured, columns, options):
    ran = []
    for seed, texts in enumerate((9, 5, 12, 1)):  # of one shape, once prompts are filled up
        x, q = states("clustered", 60, 40, texts, seed=seed)
        picks = divevlm.select(x, q, 15, columns=columns, **options)
        assert_right(x, q, picks, divevlm.core.rule.Rule(**options))
        ran.append(picks.loop)
        plain = divevlm.core.reference.reference_select(
            x, q, 15, divevlm.core.rule.Rule(**options), dtype=torch.float64
        )
        torch.testing.assert_close(picks.left.double(), plain.left, atol=1e-3, rtol=1e-5)
    assert ran == ["eager", "graph", "graph", "graph"]


def test_results_outlive_the_next_replay(captured):
    first = []
    for seed in range(4):
        x, q = states("clustered", 60, 40, 9, seed=seed)
        first.append((divevlm.select(x, q, 15), divevlm.select(x, q, 15, trace=False).order.tolist()))
    assert all(picks.order.tolist() == order for picks, order in first)


def test_few_graphs_are_kept(captured):
    x, q = states("clustered", 60, 40, 9)
    for keep in (3, 4, 5, 6):
        assert [divevlm.select(x, q, keep).loop for _ in range(3)] == ["eager", "graph", "graph"]
    assert sum(kept is not None for kept in graph._store.loops.values()) == graph.KEPT


def test_a_graph_needs_cuda():
    x, q = states("clustered", 60, 40, 9)
    with pytest.raises(ValueError, match=r"^loop must be 'eager' or 'auto' on cpu, got 'graph'$"):
        divevlm.select(x, q, 15, loop="graph")
