"""Average pooling: fewer, coarser tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from divevlm.core.bins import bin_centres
from divevlm.core.cluster import means
from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import BeforeLLM
from divevlm.methods.grid import rectangles
from divevlm.methods.rows import in_input_order


@dataclass(frozen=True, kw_only=True)
class Pool(BeforeLLM):
    """The means of K even rectangles of neighbouring tokens, each at the place of its middle token."""

    name = "pool"
    paper = "baseline"
    merges = True
    cost = "O(N d)"

    def choose(self, signals: Signals, keep: int) -> Selection:
        hidden = self.given(signals.hidden, "hidden states")
        bin_of = rectangles(signals, keep)
        cells = signals.cells.cpu()
        slots = bin_centres(bin_of, cells[:, 1], cells[:, 2]).to(hidden.device)
        values = means(hidden, bin_of.to(hidden.device), keep).to(hidden.dtype)
        members = [(bin_of == i).nonzero()[:, 0].tolist() for i in range(keep)]
        rows = in_input_order(Rows(slots, values, members))
        sizes = torch.tensor([float(len(tokens)) for tokens in rows.members], device=hidden.device)
        return Selection(rows.slots, sizes, rows=rows)
