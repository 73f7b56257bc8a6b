"""FastV: an image is worth half its tokens after layer 2."""

from __future__ import annotations

from dataclasses import dataclass

from divevlm.core.selection import Selection
from divevlm.methods.base import Needs, Norm, Signals
from divevlm.methods.each import Each, ranked


@dataclass(frozen=True, kw_only=True)
class FastV(Each):
    """The tokens that the last prompt token attends to most, mean over heads, in the block before the cut."""

    norm: Norm = "none"

    name = "fastv"
    needs = Needs(attention="last")
    paper = "Chen et al., ECCV 2024"
    arxiv = "2403.06764"
    reads_text = True
    cost = "O(N d)"

    def choose(self, signals: Signals, keep: int) -> Selection:
        attention = self.given(signals.attention, "attention rows of a block before the cut (layer 1 or later)")
        return ranked(attention[:, -1].float().mean(dim=0), keep)
