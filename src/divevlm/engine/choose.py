"""From hidden states at a cut to the positions that stay."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from divevlm.budget import Segment
from divevlm.engine.call import Call
from divevlm.engine.report import SampleReport, SegmentReport
from divevlm.methods.base import Method, Signals
from divevlm.models.base import Layout


def choose(
    method: Method, cut: int, hidden: Tensor, rows: Tensor, norm: Callable[[Tensor], Tensor], call: Call
) -> Tensor:
    """[B, S] bool: positions of the full sequence that stay after cut number `cut`. Fills the call's sample reports.

    hidden: [B, Q, d] before the cut, rows: [B, S] where each position is in it.
    """
    assert call.layouts is not None
    stay = call.present.clone()
    earlier = call.samples
    groups, keeps, places = [], [], []
    call.samples = []
    with torch.no_grad():
        for row, layout in enumerate(call.layouts):
            text = call.present[row].clone()
            text[layout.positions] = False
            if call.answer is not None:
                text &= ~call.answer[row]
            report = SampleReport(len(layout.positions), int(text.sum()), [], [])
            call.samples.append(report)
            if not report.visual:
                continue
            here = rows[row].to(hidden.device)
            states = norm(hidden[row, here[text]])
            for tokens, keep in competitors(method, layout):
                keep = method.stay(cut, keep, len(tokens))
                if earlier:
                    tokens = tokens[torch.isin(tokens, torch.tensor(earlier[row].kept))]
                report.segments.append(SegmentReport(tokens.tolist(), tokens.tolist(), len(tokens)))
                if keep < len(tokens) or method.budget.energy is not None:
                    visual = norm(hidden[row, here[layout.positions[tokens].to(here.device)]])
                    groups.append(Signals(visual, states, layout.cells[tokens], method.budget))
                    keeps.append(keep)
                    places.append((tokens, report.segments[-1]))
        if groups:
            start = time.perf_counter()
            for selection, (tokens, segment) in zip(method.select(groups, keeps), places, strict=True):
                segment.order = tokens[selection.order.cpu()].tolist()
                segment.kept = sorted(segment.order)
                segment.trace = selection.trace
            call.selection_seconds += time.perf_counter() - start
    for row, layout in enumerate(call.layouts):
        report = call.samples[row]
        kept = layout.markers.clone() if method.newlines == "keep" else torch.zeros(report.visual, dtype=torch.bool)
        for segment in report.segments:
            kept[segment.kept] = True
            report.order += segment.order
        report.kept = kept.nonzero()[:, 0].tolist()
        stay[row, layout.positions[~kept]] = False
    return stay


def competitors(method: Method, layout: Layout) -> list[tuple[Tensor, int]]:
    """Tokens that compete (indices within the sample's visual tokens; newlines never do), and how many of them stay."""
    markers = layout.markers
    ranges, sizes, start = [], [], 0
    for segment in layout.segments:
        tokens = torch.arange(start, start + segment.size)
        tokens = tokens[~markers[tokens]]
        ranges.append(tokens)
        sizes.append(Segment(len(tokens), segment.image, segment.view, segment.frame))
        start += segment.size
    shares = method.budget.shares(sizes)
    return [(torch.cat([ranges[i] for i in share.segments]), share.keep) for share in shares if share.keep]
