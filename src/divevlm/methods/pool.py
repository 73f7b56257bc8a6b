"""Average pooling: fewer, coarser tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from divevlm.core.bins import bin_centres
from divevlm.core.cluster import means
from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import Each
from divevlm.methods.grid import rectangles


@dataclass(frozen=True, kw_only=True)
class Pool(Each):
    """The means of K even rectangles of neighbouring tokens, each at the place of its middle token."""

    norm: Literal["final", "next", "none"] = "none"

    name = "pool"
    default_layer = 0
    default_positions = "compact"
    paper = "baseline"
    stage = "before the LLM"
    merges = True
    cost = "O(N d)"

    def choose(self, signals: Signals, keep: int) -> Selection:
        hidden = self.given(signals.hidden, "hidden states")
        bin_of = rectangles(signals, keep)
        cells = signals.cells.cpu()
        slots = bin_centres(bin_of, cells[:, 1], cells[:, 2])
        by_place = slots.sort().indices
        values = means(hidden, bin_of.to(hidden.device), keep).to(hidden.dtype)[by_place.to(hidden.device)]
        members = [(bin_of == i).nonzero()[:, 0].tolist() for i in by_place.tolist()]
        slots = slots[by_place].to(hidden.device)
        sizes = torch.tensor([float(len(some)) for some in members], device=hidden.device)
        return Selection(slots, sizes, rows=Rows(slots, values, members))
