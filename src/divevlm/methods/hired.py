"""HiRED: attention-guided token dropping for high resolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.regions import apportion, marked_in_bands, region_sums
from divevlm.core.selection import Selection
from divevlm.core.top import top_k
from divevlm.methods.base import Needs, Signals
from divevlm.methods.each import BeforeLLM
from divevlm.methods.views import units


@dataclass(frozen=True, kw_only=True)
class HiRED(BeforeLLM):
    """The most attended tokens of each view; the base view gets a share alpha of the places, each tile what the base view's
    first attention has in its region.

    Without a base view (frames) places go by each one's own first attention. Towers without CLS: attention received.
    faithful: the released code: tiles by how many of the best int(N (1 - alpha)) base tokens lie in bands of rows, rounded
    down; some places stay empty.
    """

    alpha: float = 0.5
    faithful: bool = False

    name = "hired"
    needs = Needs(vision=("saliency", "first_saliency"))
    paper = "Arif et al., AAAI 2025"
    arxiv = "2408.10945"
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
        """How many tokens of each view are kept. unit: [n] the view or tile of each token; the base view comes first"""
        first = self.tower(signals, "first_saliency").float()
        limits = torch.bincount(unit).tolist()
        if not has_mosaic(signals, unit):
            own = torch.zeros(len(limits), device=first.device).index_add_(0, unit.to(first.device), first)
            return apportion(keep, own.tolist(), limits)
        base = min(int(self.alpha * keep), limits[0])
        if self.faithful:
            attention = first[(unit == 0).to(first.device)]
            marked = marked_in_bands(attention, int(limits[0] * (1 - self.alpha)), len(limits) - 1)
            shares = [int(count / max(1, sum(marked)) * (keep - base)) for count in marked]
            return [base, *(min(share, limit) for share, limit in zip(shares, limits[1:], strict=True))]
        tiles = apportion(keep - base, self.weights(signals, unit, first), limits[1:])
        return [min(limits[0], keep - sum(tiles)), *tiles]

    def weights(self, signals: Signals, unit: Tensor, first: Tensor) -> list[float]:
        """Of each tile of the mosaic: the base view's first attention inside its region."""
        cells, unit = signals.cells[:, 1:].cpu(), unit.cpu()  # [n, 2] row and column, in the base view or in the mosaic
        rows, columns = (cells[unit == 0].amax(dim=0) + 1).tolist()
        attention = first[(unit == 0).to(first.device)].cpu().view(rows, columns)
        bottom, right = (cells[unit > 0].amax(dim=0) + 1).tolist()
        corners = [cells[unit == tile].amin(dim=0).tolist() for tile in range(1, int(unit.max()) + 1)]
        tops, lefts = sorted({top for top, _ in corners}), sorted({left for _, left in corners})
        row_edges = [*(top / bottom for top in tops), 1.0]
        column_edges = [*(left / right for left in lefts), 1.0]
        sums = region_sums(attention, row_edges, column_edges)  # [rows of tiles, columns of tiles]
        return [float(sums[tops.index(top), lefts.index(left)]) for top, left in corners]


def has_mosaic(signals: Signals, unit: Tensor) -> bool:
    """Whether the candidates are one base view (view 0, unit 0) and the tiles of one mosaic (view 1)."""
    if signals.views is None or signals.views.unique().tolist() != [0, 1]:
        return False
    return bool((signals.views[unit != 0] == 1).all())
