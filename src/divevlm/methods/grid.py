"""Uniform stride over the image, whatever the tokens show."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divevlm.budget import divide
from divevlm.core.bins import bin_centres, grid_bins, sequence_bins
from divevlm.core.selection import Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import Each


@dataclass(frozen=True, kw_only=True)
class Grid(Each):
    """A regular lattice: the middle tokens of K even rectangles, each view and frame with its share by size."""

    name = "grid"
    paper = "baseline"
    cost = "O(N)"

    def choose(self, signals: Signals, keep: int) -> Selection:
        bin_of = rectangles(signals, keep)
        cells = signals.cells.cpu()
        order = bin_centres(bin_of, cells[:, 1], cells[:, 2]).to(signals.visual.device)
        return Selection(order, torch.ones(keep, device=order.device))


def rectangles(signals: Signals, keep: int) -> Tensor:
    """[n] on the CPU: which of `keep` even rectangles each token is in. A sequence without a full grid is cut into runs."""
    cells = signals.cells.cpu()
    n = len(cells)
    view = torch.zeros(n, dtype=torch.long) if signals.views is None else signals.views.cpu()
    _, unit = torch.stack([view, cells[:, 0]], dim=1).unique(dim=0, return_inverse=True)
    sizes = torch.bincount(unit).tolist()
    places = divide(keep, sizes)
    if 0 in places:  # fewer places than views or frames
        return sequence_bins(n, keep)
    bin_of = torch.zeros(n, dtype=torch.long)
    start = 0
    for number, (size, place) in enumerate(zip(sizes, places, strict=True)):
        members = (unit == number).nonzero()[:, 0]
        at = cells[members, 1:] - cells[members, 1:].amin(dim=0)
        rows, columns = (int(side) + 1 for side in at.amax(dim=0))
        reading = at[:, 0] * columns + at[:, 1]
        full = rows * columns == size and bool((reading.sort().values == torch.arange(size)).all())
        bin_of[members] = start + (grid_bins(rows, columns, place)[reading] if full else sequence_bins(size, place))
        start += place
    return bin_of
