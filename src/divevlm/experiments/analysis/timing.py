"""What feedback costs (figure 4c), and where the energy goes, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.engine import Session
from divevlm.experiments.answering import Answerer
from divevlm.experiments.settings import Setting
from divevlm.experiments.tasks import Item
from divevlm.methods import method_of
from divevlm.timing import Clock

Tick = Callable[[int, str], object]


@torch.inference_mode()
def runtime(
    answerer: Answerer,
    items: Sequence[Item],
    schedules: Sequence[int],
    keep: int | float = 64,
    new_tokens: int = 32,
    tick: Tick = lambda count, text: None,
) -> list[dict[str, Any]]:
    """Prefill overhead of each schedule over no update, and latency with everybody's decoding replaced by that of no update.

    One question at a time, schedules in turn, so that a slow minute hits all of them; the first question is asked once more
    before all others, to warm up.
    """
    methods = {r: Setting(f"dive:updates={r}", keep).ready(answerer.model) for r in schedules}
    times: dict[int, list[tuple[float, float]]] = {r: [] for r in schedules}
    for item in [*items[:1], *items]:
        inputs = answerer.inputs([item])
        for r, method in methods.items():
            assert method is not None
            with Session(answerer.model, method), Clock(answerer.model) as clock:
                answerer.model.generate(**inputs, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False)
            times[r].append((clock.first, clock.total - clock.first))
        tick(len(methods), "runtime")
    prefill = {r: 1e3 * mean(first for first, _ in pairs[1:]) for r, pairs in times.items()}
    base = schedules[0]
    decode = 1e3 * mean(rest for _, rest in times[base][1:])
    return [
        {
            "setting": f"dive:updates={r} {keep}",
            "updates": r,
            "prefill_ms": prefill[r],
            "overhead_ms": prefill[r] - prefill[base],
            "overhead_percent": 100 * (prefill[r] / prefill[base] - 1),
            "end_to_end_ms": prefill[r] + decode,
            "end_to_end_percent": 100 * (prefill[r] - prefill[base]) / (prefill[base] + decode),
            "samples": len(items),
        }
        for r in schedules
    ]


@torch.inference_mode()
def energy(answerer: Answerer, items: Sequence[Item], keep: int | float = 64, batch: int = 16) -> list[dict[str, Any]]:
    """Shares of the visual and of the prompt's energy that are left before each pick and after the last: mean of the samples that
    have so many picks (a share is not the same number in each picture)."""
    visual: list[list[float]] = []
    prompt: list[list[float]] = []
    for at in range(0, len(items), batch):
        with Session(answerer.model, method_of("dive", keep, {"trace": True})) as session:
            answerer.model(**answerer.inputs(items[at : at + batch]))
        traces = [segment.trace for sample in session.report.samples for segment in sample.segments]
        for trace in traces:
            if trace is not None:  # None: all of them stay
                visual.append(_shares(trace.energy))
                prompt.append(_shares(trace.query_energy))
        require(bool(visual), "keep", keep, "less than the visual tokens of a picture: otherwise nothing is picked")
    rows = []
    for step in range(max(map(len, visual))):
        v, q = ([shares[step] for shares in kind if step < len(shares)] for kind in (visual, prompt))
        shares = {"visual": mean(v), "prompt": mean(q), "samples": len(v)}
        rows.append({"setting": f"after {step} picks", "picks": step, **shares})
    return rows


def _shares(energy: Tensor) -> list[float]:
    """[steps, tokens] -> of what there was at first"""
    totals = energy.sum(dim=1)
    shares: list[float] = (totals / totals[0]).tolist()
    return shares


RUNTIME = (
    ("prefill_ms", "prefill, ms", 2),
    ("overhead_ms", "over no update, ms", 2),
    ("overhead_percent", "over no update, %", 1),
    ("end_to_end_ms", "end to end, ms", 1),
    ("end_to_end_percent", "end to end over no update, %", 1),
)
ENERGY = (("visual", "visual energy left", 4), ("prompt", "prompt energy left", 4))
