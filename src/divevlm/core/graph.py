"""The eager loop captured as a CUDA graph: its operations are launched by the device, not one by one by Python.

Capturing costs more than a run, so that shapes are captured when they come a second time. Graphs and the buffers they work in
belong to one thread; the latest KEPT of them are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch.nn.functional import pad

from divevlm.core.eager import Eager
from divevlm.core.gram import Picks, Problem, run, steps

KEPT = 2
ROUND = 32  # prompts are filled up with zeros to a multiple of this, so that shapes recur

Capture = Callable[[Callable[[], object]], Callable[[], object]]  # runs a function, returns what repeats its operations


Loops = OrderedDict[object, tuple[Eager, Callable[[], object]] | None]  # None: a shape that came once


class _Store(threading.local):
    def __init__(self) -> None:
        self.loops: Loops = OrderedDict()


_store = _Store()


def on_cuda(work: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


def graph_picks(problem: Problem, way: Literal["gram", "picked"], capture: Capture = on_cuda) -> tuple[Picks, bool]:
    """All picks, and whether they came of a graph."""
    texts = problem.cross.shape[1]
    problem = replace(problem, cross=pad(problem.cross, (0, 0, 0, -texts % ROUND)))
    e = problem.energy
    shape = problem.x.shape if way == "picked" else e.shape
    key = (e.device, e.dtype, shape, problem.cross.shape, problem.weight is None, problem.keep, problem.rule, way)
    kept, loops = _store.loops.get(key), _store.loops
    if kept is None:
        loop = Eager(problem, way)
        if key not in loops:  # for the first time
            loops[key] = None
            _forget(loops)
            return run(loop, problem), False
        run(loop, problem)  # what is set up at first use must not be captured
        loop.restart(problem)
        kept = loop, capture(lambda: list(steps(loop, problem)))
        loops[key] = kept
    loops.move_to_end(key)
    _forget(loops)
    loop, replay = kept
    loop.load(problem)
    replay()
    picks = loop.picks(problem.keep)
    return Picks(picks.order.clone(), picks.scores.clone(), picks.left.clone()), True


def _forget(loops: Loops) -> None:
    """Graphs hold memory, shapes that came once don't."""
    while sum(kept is not None for kept in loops.values()) > KEPT or len(loops) > 64:
        oldest = next((key for key, kept in loops.items() if kept is not None), next(iter(loops)))
        del loops[oldest]
