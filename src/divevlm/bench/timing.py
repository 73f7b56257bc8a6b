"""Time and memory of functions, side by side."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

from torch.profiler import ProfilerActivity, profile


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    rounds: Mapping[str, int],
    tick: Callable[[str, float], object] = lambda name, share: None,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds and last result of each contender. A round runs each once, so that a noisy minute hits all of them alike.

    rounds: how often to run each. Those with fewer rounds sit the later ones out.
    tick: told of every run, and of the share that is done
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    results: dict[str, Any] = {}
    done = 0
    for turn in range(max(rounds.values())):
        for name, run in contenders.items():
            if turn < rounds[name]:
                start = time.perf_counter()
                results[name] = run()
                seconds[name].append(time.perf_counter() - start)
                done += 1
                tick(name, done / sum(rounds.values()))
    return {name: median(values) for name, values in seconds.items()}, results


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that torch tensors made by `run` hold at one time, on a CPU."""
    with _silence(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    held = peak = 0
    events = profiler.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    del result
    return peak


@contextmanager
def _silence() -> Iterator[None]:
    """The profiler writes a line to stderr at each start and stop, past Python and past every setting."""
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
