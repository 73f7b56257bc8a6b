"""SCOPE: saliency times coverage."""

from __future__ import annotations

from dataclasses import dataclass

from divevlm.checks import require
from divevlm.core.coverage import greedy_coverage
from divevlm.core.selection import Selection
from divevlm.core.top import unit
from divevlm.methods.base import Needs, Signals
from divevlm.methods.views import PerView


@dataclass(frozen=True, kw_only=True)
class SCOPE(PerView):
    """Greedy facility location on the cosines of tower features, each gain times saliency^alpha.

    Towers without CLS: saliency is the attention received.
    """

    alpha: float = 1.0

    name = "scope"
    needs = Needs(vision=("saliency", "features"))
    paper = "Deng et al., NeurIPS 2025"
    arxiv = "2510.24214"
    stage = "vision tower"
    cost = "O(N² d + K N²)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha >= 0, "alpha", self.alpha, "a number of at least 0")

    def choose_view(self, signals: Signals, keep: int) -> Selection:
        rows = unit(self.tower(signals, "features"))
        saliency = self.tower(signals, "saliency")
        return Selection(*greedy_coverage(rows @ rows.T, keep, saliency.float() ** self.alpha))
