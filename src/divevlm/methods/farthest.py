"""Diversity alone."""

from __future__ import annotations

from dataclasses import dataclass

from divevlm.core.farthest import farthest_points
from divevlm.core.selection import Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import Each


@dataclass(frozen=True, kw_only=True)
class Farthest(Each):
    """Farthest-point sampling by cosine: each pick is the token least like all picks before it."""

    name = "farthest"
    paper = "baseline"
    cost = "O(K N d)"

    def choose(self, signals: Signals, keep: int) -> Selection:
        return Selection(*farthest_points(signals.visual, keep))
