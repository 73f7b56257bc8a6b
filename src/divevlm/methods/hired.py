"""HiRED: attention-guided token dropping for high resolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.regions import apportion, marked_in_bands, region_sums
from divevlm.core.selection import Selection
from divevlm.core.top import top_k
from divevlm.methods.base import Needs, Signals
from divevlm.methods.each import Each
from divevlm.methods.views import units


@dataclass(frozen=True, kw_only=True)
class HiRED(Each):
    """The most attended tokens of each view; the base view gets a share alpha of the places, each tile what the base view's
    first attention has in its region.

    Without a base view (frames) places go by each one's own first attention. Towers without CLS: attention received.
    faithful: the released code: tiles by how many of the best int(N (1 - alpha)) base tokens lie in bands of rows, rounded
    down; some places stay empty.
    """

    norm: Literal["final", "next", "none"] = "none"
    alpha: float = 0.5
    faithful: bool = False

    name = "hired"
    needs = Needs(vision=("saliency", "first_saliency"))
    default_layer = 0
    default_positions = "compact"
    paper = "Arif et al., AAAI 2025"
    stage = "vision tower"
    cost = "O(N d)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.alpha <= 1, "alpha", self.alpha, "a number in [0, 1]")

    def choose(self, signals: Signals, keep: int) -> Selection:
        saliency = self.tower(signals, "saliency")
        unit = units(signals)
        order = []
        for number, place in enumerate(self.places(signals, unit, keep)):
            members = (unit == number).nonzero()[:, 0]
            order.append(members[top_k(saliency[members], place)])
        picks = torch.cat(order)
        return Selection(picks, saliency[picks])

    def places(self, signals: Signals, unit: Tensor, keep: int) -> list[int]:
        """How many tokens of each view stay. unit: [n] the view of each token; the base view comes first"""
        first = self.tower(signals, "first_saliency").float()
        limits = torch.bincount(unit).tolist()
        seen = [0] if signals.views is None else signals.views.unique().tolist()
        base = (unit == 0).to(first.device)
        if seen != [0, 1] or bool((signals.views[unit != 0] == 0).any()):  # type: ignore[index]
            own = torch.zeros(len(limits), device=first.device).index_add_(0, unit.to(first.device), first)
            return apportion(keep, own.tolist(), limits)
        whole = min(int(self.alpha * keep), limits[0])
        if self.faithful:
            marked = marked_in_bands(first[base], int(limits[0] * (1 - self.alpha)), len(limits) - 1)
            shares = [int(count / max(1, sum(marked)) * (keep - whole)) for count in marked]
            return [whole, *(min(share, limit) for share, limit in zip(shares, limits[1:], strict=True))]
        tiles = apportion(keep - whole, self.weights(signals, unit, first), limits[1:])
        return [min(limits[0], keep - sum(tiles)), *tiles]

    def weights(self, signals: Signals, unit: Tensor, first: Tensor) -> list[float]:
        """Of each tile of the mosaic: the base view's first attention inside its region."""
        cells, unit = signals.cells[:, 1:].cpu(), unit.cpu()
        tiles = range(1, int(unit.max()) + 1)
        corners = [cells[unit == tile].amin(dim=0).tolist() for tile in tiles]
        ends = cells[unit > 0].amax(dim=0) + 1
        edges = [[*sorted({corner[axis] for corner in corners}), int(ends[axis])] for axis in (0, 1)]
        heat = first[(unit == 0).to(first.device)].cpu()
        rows, columns = (int(side) + 1 for side in cells[unit == 0].amax(dim=0))
        sums = region_sums(heat.view(rows, columns), *([edge / axis[-1] for edge in axis] for axis in edges))
        return [float(sums[edges[0].index(top), edges[1].index(left)]) for top, left in corners]
