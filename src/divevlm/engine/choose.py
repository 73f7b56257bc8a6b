"""At a cut: from signals to the positions that stay."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from divevlm.budget import Segment
from divevlm.core.selection import Selection
from divevlm.engine.call import Call
from divevlm.engine.report import SampleReport, SegmentReport
from divevlm.engine.signals import Gatherer
from divevlm.methods.base import Method, Signals
from divevlm.models.base import Layout


@dataclass
class Choice:
    """Of a batch: which positions of the full sequence stay, and what changes about them."""

    stay: Tensor  # [B, S] bool
    places: Tensor  # [B, S] by these the positions that stay are ordered
    edits: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)  # row, positions [r], their new states [r, d]


def choose(method: Method, cut: int, blocks: int, gatherer: Gatherer, call: Call) -> Choice:
    """Who stays after cut number `cut`. Fills the call's sample reports. blocks: how many the model has."""
    assert call.layouts is not None
    batch, length = call.present.shape
    if call.places is None:
        call.places = torch.arange(length, device=call.present.device).repeat(batch, 1)
    choice = Choice(call.present.clone(), call.places)
    earlier, call.samples = call.samples, []
    groups: list[Signals] = []
    keeps, wheres = [], []
    with torch.no_grad():
        for row, layout in enumerate(call.layouts):
            text = call.prompt(row)
            report = SampleReport(len(layout.positions), len(text), [], [], visuals=layout.visuals)
            call.samples.append(report)
            if not report.visual:
                continue
            for tokens, keep in competitors(method, layout):
                before = tokens
                keep = method.stay(cut, keep, len(before), blocks)
                if earlier:
                    tokens = tokens[torch.isin(tokens, torch.tensor(earlier[row].kept))]
                    tokens = tokens[
                        call.places[row, layout.positions[tokens]].cpu().argsort()
                    ]  # as they come in the sequence
                report.segments.append(SegmentReport(sorted(tokens.tolist()), tokens.tolist(), len(tokens)))
                if keep < len(tokens) or method.budget.energy is not None:
                    groups.append(gatherer.signals(row, tokens, text, before))
                    keeps.append(keep)
                    wheres.append((row, tokens, report.segments[-1]))
        if groups:
            start = time.perf_counter()
            for selection, (row, tokens, segment) in zip(method.select(groups, keeps), wheres, strict=True):
                _note(selection, row, tokens, segment, call.layouts[row], choice)
            call.selection_seconds += time.perf_counter() - start
    for row, layout in enumerate(call.layouts):
        report = call.samples[row]
        kept = layout.markers.clone() if method.newlines == "keep" else torch.zeros(report.visual, dtype=torch.bool)
        for segment in report.segments:
            kept[segment.kept] = True
            report.order += segment.order
        report.kept = kept.nonzero()[:, 0].tolist()
        choice.stay[row, layout.positions[~kept]] = False
    return choice


def _note(
    selection: Selection, row: int, tokens: Tensor, segment: SegmentReport, layout: Layout, choice: Choice
) -> None:
    segment.order = tokens[selection.order.cpu()].tolist()
    segment.trace, segment.note = selection.trace, selection.note
    rows = selection.rows
    if rows is None:
        segment.kept = sorted(segment.order)
        return
    slots = tokens[rows.slots.cpu()]
    segment.kept = sorted(slots.tolist())
    segment.merged = [tokens[members].tolist() for members in rows.members]
    positions = layout.positions[slots].to(choice.places.device)
    choice.places[row, positions] = choice.places[row, positions].sort().values
    choice.edits.append((row, positions, rows.values))


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
