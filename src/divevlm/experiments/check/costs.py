"""What a method costs and saves on a live model: prefill, decoding, memory, choice; beside all tokens, in turn."""

from __future__ import annotations

from contextlib import nullcontext
from statistics import median
from typing import Any

import torch

from divevlm.engine import prune
from divevlm.experiments.check.findings import Subject
from divevlm.timing import Clock

PEAK = 2**30


@torch.inference_mode()
def measured(subject: Subject, new_tokens: int = 16, repeats: int = 3) -> list[dict[str, Any]]:
    """Medians of `repeats` runs on the last picture, after one to warm up; the two settings take turns."""
    inputs = subject.inputs(len(subject.shown) - 1)
    rows: dict[str, list[dict[str, float]]] = {"all tokens": [], subject.method.name: []}
    for run in range(repeats + 1):
        for name, runs in rows.items():
            costs = _once(subject, inputs, None if name == "all tokens" else subject.method, new_tokens)
            if run:
                runs.append(costs)
    return [
        {"setting": name, **{key: median(of_run[key] for of_run in runs) for key in runs[0]}}
        for name, runs in rows.items()
    ]


def _once(subject: Subject, inputs: dict[str, Any], method: Any, new_tokens: int) -> dict[str, float]:
    model = subject.model
    cuda = model.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(model.device)
    with nullcontext() if method is None else prune(model, method) as session, Clock(model) as clock:
        model.generate(**inputs, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False)
    report = None if session is None else session.report
    costs = {
        "prefill_ms": 1e3 * clock.first,
        "token_ms": 1e3 * (clock.total - clock.first) / max(1, new_tokens - 1),
        "total_ms": 1e3 * clock.total,
        "selection_ms": 0.0 if report is None else report.selection_ms,
    }
    if report is not None:
        kept = report.samples[0]
        costs |= {"kept": len(kept.kept), "visual": kept.visual, "kv_share": report.kv_bytes / report.kv_bytes_full}
    if cuda:
        costs["peak_gb"] = torch.cuda.max_memory_allocated(model.device) / PEAK
    return costs
