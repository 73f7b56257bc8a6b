"""What an explorer page holds, as one JSON-able object. Maps are rounded to bytes: 1/255 of the largest value of each step."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from divevlm import __version__
from divevlm.core.selection import Trace
from divevlm.viz.asking import Comparison, MethodAnswer
from divevlm.viz.places import Panel

LIMIT = 2_000_000  # characters for all maps of a page
PICTURES = 600_000  # for all its pictures
SIDE = 672  # pixels of a picture's longer side, at most


def pack(comparison: Comparison, gold: str | None = None) -> dict[str, Any]:
    """Everything that the page shows. Settings whose picks are the first picks of another one share its maps."""
    runs = [answer for answer in comparison.answers if answer.report is not None]
    traced = longest([answer for answer in runs if _traces(answer)])
    limit = LIMIT // max(1, len(traced))
    return {
        "version": __version__,
        "question": comparison.question,
        "gold": gold,
        "model": comparison.model,
        "family": comparison.family,
        "visual": comparison.visual,
        "words": comparison.words,
        "panels": [_panel(panel, len(comparison.panels)) for panel in comparison.panels],
        "full": next((_summary(answer) for answer in comparison.answers if answer.report is None), None),
        "runs": [_summary(answer) | {"trace": _whose(answer, traced)} for answer in runs],
        "traces": [_trace(answer, limit) for answer in traced],
    }


def _traces(answer: MethodAnswer) -> bool:
    return answer.report is not None and any(segment.trace is not None for segment in answer.report.samples[0].segments)


def longest(traced: Sequence[MethodAnswer]) -> list[MethodAnswer]:
    """Without those whose picks are the first picks of another one."""
    runs: list[MethodAnswer] = []
    for answer in sorted(traced, key=lambda answer: -sum(map(len, _orders(answer)))):
        if _whose(answer, runs) is None:
            runs.append(answer)
    return runs


def _whose(answer: MethodAnswer, traced: Sequence[MethodAnswer]) -> int | None:
    """The number of the trace whose first picks are those of this answer."""
    mine = _orders(answer)
    for number, other in enumerate(traced):
        theirs = _orders(other)
        begins = len(mine) == len(theirs) and all(a == b[: len(a)] for a, b in zip(mine, theirs, strict=True))
        if begins and _settings(answer) == _settings(other):
            return number
    return None


def _orders(answer: MethodAnswer) -> list[list[int]]:
    assert answer.report is not None
    return [segment.order for segment in answer.report.samples[0].segments]


def _settings(answer: MethodAnswer) -> dict[str, Any]:
    """All that picks depend on but the budget."""
    assert answer.method is not None
    kept = (field.name for field in fields(answer.method) if field.name not in ("keep", "budget", "trace"))
    return {"name": answer.method.name} | {name: getattr(answer.method, name) for name in kept}


def _summary(answer: MethodAnswer) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "label": answer.label,
        "answer": answer.text,
        "first_ms": round(1e3 * answer.first_seconds, 1),
        "token_ms": None if answer.token_seconds is None else round(1e3 * answer.token_seconds, 1),
    }
    report = answer.report
    if report is None or answer.method is None:
        return summary
    sample = report.samples[0]
    return summary | {
        "method": answer.method.name,
        "about": " ".join((answer.method.__doc__ or "").split("\n\n")[0].split()),
        "keep": len(sample.order),
        "all": all(len(segment.order) == segment.visual for segment in sample.segments),
        "lam": getattr(answer.method, "lam", None),
        "eta": getattr(answer.method, "eta", None),
        "kept": sample.kept,
        "segments": [{"order": segment.order, "note": segment.note} for segment in sample.segments],
        "merges": any(segment.merged is not None for segment in sample.segments),
        "kv_bytes": report.kv_bytes,
        "kv_bytes_full": report.kv_bytes_full,
        "selection_ms": round(report.selection_ms, 2),
    }


def _trace(answer: MethodAnswer, limit: int) -> list[dict[str, Any] | None]:
    """One for each group of competing tokens; None where all of them stay."""
    assert answer.report is not None
    assert answer.method is not None
    sample = answer.report.samples[0]
    share = limit // max(1, len(sample.segments))
    return [
        None if segment.trace is None else _maps(segment.trace, segment.candidates, segment.order, share)
        for segment in sample.segments
    ]


def _maps(trace: Trace, tokens: list[int], order: list[int], limit: int) -> dict[str, Any]:
    steps = kept_steps(trace, limit)
    energy = trace.energy.cpu()
    return {
        "tokens": _ranges(tokens),
        "order": order,
        "steps": steps,
        "scores": _bytes(trace.scores.cpu()[steps].clamp_min(0)),
        "alignment": _bytes(trace.alignment.cpu()[steps]),
        "energy": _bytes(energy[steps]),
        "explained": _bytes((energy[:-1] - energy[1:])[steps].clamp_min(0)),
        "left": _shares(energy),
        "open": _shares(trace.query_energy.cpu()),
        "words": _bytes(trace.query_energy.cpu().clamp_min(0).sqrt()),
    }


def _shares(energy: Tensor) -> list[float]:
    """Of all energy before the first pick, what is left after each. energy: [picks + 1, rows]"""
    totals = energy.sum(dim=1)
    return [round(share, 4) for share in (totals / totals[0].clamp_min(1e-12)).tolist()]


def kept_steps(trace: Trace, limit: int) -> list[int]:
    """The steps whose maps go on the page: all, or as many as fit, evenly spaced; one if nothing ever changes."""
    steps, tokens = trace.scores.shape
    if bool((trace.energy == trace.energy[0]).all()):
        return [0]
    most = max(2, int(limit / (4 * tokens * 4 / 3)))
    if steps <= most:
        return list(range(steps))
    return sorted({round(i * (steps - 1) / (most - 1)) for i in range(most)})


def _bytes(values: Tensor) -> dict[str, Any]:
    """values: [rows, columns], none negative -> base64 of a byte each, and the scale of each row"""
    values = values.nan_to_num()  # a score may be beyond all numbers: exp of a large lambda
    scales = values.amax(dim=1) if values.numel() else values.new_zeros(len(values))
    small = (255 * (values / scales.clamp_min(1e-12)[:, None])).round().to(torch.uint8)
    return {
        "bytes": base64.b64encode(small.contiguous().numpy().tobytes()).decode(),
        "scales": [float(f"{scale:.5g}") for scale in scales.tolist()],
    }


def _ranges(tokens: list[int]) -> list[list[int]]:
    """[3, 4, 5, 9] -> [[3, 3], [9, 1]]"""
    runs: list[list[int]] = []
    for token in tokens:
        if runs and token == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([token, 1])
    return runs


def _panel(panel: Panel, among: int) -> dict[str, Any]:
    picture = panel.picture.convert("RGB")
    side = SIDE if among == 1 else max(112, int(SIDE / among**0.5))
    picture.thumbnail((side, side))
    for quality in (85, 70, 50, 30):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        if file.tell() * 4 / 3 <= PICTURES / among:
            break
    return {
        "label": panel.label,
        "picture": "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode(),
        "width": panel.picture.width,
        "height": panel.picture.height,
        "grids": [[grid.first, grid.rows, grid.columns, int(grid.newlines), *grid.box] for grid in panel.grids],
    }
