"""What merging methods send on: kept tokens as they are, CLS rows and merged rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Signals


@dataclass
class Part:
    """What VisionZip or PruneSID sends on of one tower input (view or tile). Tokens are counted within the group."""

    tokens: Tensor  # [n] all its tokens
    kept: Tensor  # [k] as picked
    scores: Tensor  # [k]
    cls: Rows | None = None  # the projected CLS row
    merged: Rows | None = None
    ascending: bool = True  # kept tokens come in input order; False: as picked


def cls_row(signals: Signals, tokens: Tensor, free: Tensor) -> Rows | None:
    """CLS of one tower input, at the place of its first free token; None where there is no CLS or no way to project it.

    tokens: [n] numbers of its tokens within the group, free: [n] bool, those that nothing stands for yet
    """
    vision = signals.vision
    if vision is None or vision.cls is None or vision.project is None:
        return None
    return Rows(tokens[free.nonzero()[:1, 0]], vision.project(vision.cls[vision.tile[:1]]), [[]])


def assembled(signals: Signals, parts: Sequence[Part]) -> Selection:
    """One selection of all parts. Where the family pools rows, everything stands in input order; elsewhere view by view."""
    kept, scores = torch.cat([part.kept for part in parts]), torch.cat([part.scores for part in parts])
    extra = [part.cls for part in parts if part.cls] + [part.merged for part in parts if part.merged]
    ascending = all(part.ascending for part in parts)
    if not extra and ascending:
        return Selection(kept, scores)
    assert signals.hidden is not None
    rows = joined([rows for view in _by_view(signals, parts) for rows in _rows_of_view(view, signals.hidden)])
    if ascending and (signals.vision is None or signals.vision.project is None):
        rows = in_input_order(rows)
    order = torch.cat([kept, *(rows.slots for rows in extra)])
    no_scores = scores.new_zeros(len(order) - len(kept), dtype=torch.float32)
    return Selection(order, torch.cat([scores.float(), no_scores]), rows=rows)


def _by_view(signals: Signals, parts: Sequence[Part]) -> list[list[Part]]:
    """The parts of each view: one, or the tiles of a mosaic."""
    if signals.views is None:
        return [[part] for part in parts]
    views: dict[tuple[int, int], list[Part]] = {}
    for part in parts:
        token = int(part.tokens[0])
        views.setdefault((int(signals.views[token]), int(signals.cells[token, 0])), []).append(part)
    return list(views.values())


def _rows_of_view(parts: Sequence[Part], hidden: Tensor) -> list[Rows]:
    """In front of a lone view stands its CLS; the tiles of a mosaic come in reading order, and every CLS behind them."""
    tokens = torch.cat([part.kept for part in parts])
    if len(parts) > 1 or parts[0].ascending:
        tokens = tokens.sort().values
    kept = kept_rows(tokens, hidden)
    cls = [part.cls for part in parts if part.cls]
    merged = [part.merged for part in parts if part.merged]
    ordered = [*cls, kept, *merged] if len(parts) == 1 else [kept, *cls, *merged]
    return [Rows(rows.slots, rows.values.to(hidden), rows.members) for rows in ordered]


def kept_rows(tokens: Tensor, hidden: Tensor) -> Rows:
    """Tokens as they are."""
    return Rows(tokens, hidden[tokens], [[token] for token in tokens.tolist()])


def joined(rows: Sequence[Rows]) -> Rows:
    """One behind the other."""
    members = [tokens for part in rows for tokens in part.members]
    return Rows(torch.cat([part.slots for part in rows]), torch.cat([part.values for part in rows]), members)


def in_input_order(rows: Rows) -> Rows:
    order = rows.slots.sort().indices
    values = rows.values[order.to(rows.values.device)]
    return Rows(rows.slots[order], values, [rows.members[i] for i in order.tolist()])
