"""What VisionZip and PruneSID send on: tokens as they are, CLS, and merged rows, in the order of the original."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Signals


@dataclass
class Piece:
    """Of one view. All indices count within the group."""

    kept: Tensor  # [k] as picked
    scores: Tensor  # [k]
    cls: Tensor | None = None  # [1, d_v] the view's CLS row, before projection
    slot: int = -1  # the dropped token that lends CLS its place
    targets: Tensor | None = None  # [C] tokens that others were merged into
    rows: Tensor | None = None  # [C, d_v] before projection, or [C, d]
    members: list[list[int]] = field(default_factory=list)
    ascending: bool = True  # False: as picked


def assembled(signals: Signals, pieces: list[Piece], note: str = "") -> Selection:
    """One selection of all views. In front of a projector: CLS, kept tokens, merged rows, view by view; a view of several
    tiles (a mosaic): its kept tokens in reading order, then every CLS, then every merged row. Behind a projector that
    pools, merged rows stay at their targets."""
    if all(one.cls is None and one.targets is None and one.ascending for one in pieces):
        return Selection(torch.cat([one.kept for one in pieces]), torch.cat([one.scores for one in pieces]), note=note)
    assert signals.hidden is not None
    hidden = signals.hidden
    project = None if signals.vision is None else signals.vision.project
    slots: list[Tensor] = []
    values: list[Tensor] = []
    members: list[list[int]] = []

    def put(at: Tensor, rows: Tensor, whose: list[list[int]]) -> None:
        slots.append(at)
        values.append(rows.to(hidden.device, hidden.dtype))
        members.extend(whose)

    for view in _by_view(signals, pieces):
        several = len(view) > 1
        heads = [one for one in view if one.cls is not None]

        def put_heads(heads: list[Piece] = heads) -> None:
            for one in heads:
                assert project is not None
                assert one.cls is not None
                put(torch.tensor([one.slot], device=hidden.device), project(one.cls), [[]])

        if not several:
            put_heads()
        kept = torch.cat([one.kept for one in view])
        kept = kept.sort().values if several or view[0].ascending else kept
        put(kept, hidden[kept], [[i] for i in kept.tolist()])
        if several:
            put_heads()
        for one in view:
            if one.targets is not None and one.rows is not None and len(one.targets):
                put(one.targets, one.rows if project is None else project(one.rows), one.members)
    places, rows = torch.cat(slots), torch.cat(values)
    if project is None and all(one.ascending for one in pieces):
        by_place = places.sort().indices
        places, rows, members = places[by_place], rows[by_place], [members[i] for i in by_place.tolist()]
    order = torch.cat([torch.cat([one.kept for one in pieces]), *_others(pieces, hidden.device)])
    scores = torch.cat([torch.cat([one.scores for one in pieces]).float(), hidden.new_zeros(len(places)).float()])
    return Selection(order, scores[: len(order)], note=note, rows=Rows(places, rows, members))


def _by_view(signals: Signals, pieces: list[Piece]) -> list[list[Piece]]:
    views: dict[object, list[Piece]] = {}
    for number, one in enumerate(pieces):
        anchor = int(one.kept[0]) if len(one.kept) else one.slot
        view = number if signals.views is None else (int(signals.views[anchor]), int(signals.cells[anchor, 0]))
        views.setdefault(view, []).append(one)
    return list(views.values())


def _others(pieces: list[Piece], device: torch.device) -> list[Tensor]:
    """Slots of the rows that are no tokens themselves."""
    heads = [one.slot for one in pieces if one.cls is not None]
    return [torch.tensor(heads, dtype=torch.long, device=device)] + [
        one.targets for one in pieces if one.targets is not None
    ]
