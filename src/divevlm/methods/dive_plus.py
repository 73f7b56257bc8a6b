"""DIVE with what was found beyond the paper: a prompt that keeps its say, two cuts, groups that are measured."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch

from divevlm.checks import number, require
from divevlm.core.reference import alignment
from divevlm.core.rule import Rule
from divevlm.core.select import select
from divevlm.core.selection import Selection
from divevlm.core.top import unit
from divevlm.methods.base import Norm, Signals
from divevlm.methods.staged import Staged

ENOUGH = 6  # blocks for two cuts


@dataclass(frozen=True, kw_only=True)
class DivePlus(Staged):
    """At DIVE's block `first` times as many tokens stay as in the end (at most half), some blocks later the rest.

    The first cut is DIVE whose picks explain visual states only: what the prompt asks for stays as it was at the start. The
    second is DIVE as it is. Kept tokens have the attention of the groups that they stand for (`proportional`).

    lam    strength of the prompt at the first cut
    first  4: at most as much work as DIVE with twice the tokens; 2: with four thirds of them; 1: a single cut, the first one
    between  share of the remaining blocks that lies between the cuts: more for models that read a picture late, at more work
    match  "layer-mean" counts with a first cut at block 2; a family that cuts later (Qwen3-VL) has more
    """

    norm: Norm = "final"
    proportional: bool | float | Literal["uniform", "measured"] = "measured"
    lam: float = 3.0
    eta: float = 0.8
    top_h: int = 3
    first: float = 4.0
    between: float = 1 / 3

    name = "dive-plus"
    paper = "this project"
    cost = "O(N² d + 16 K² N)"

    def __post_init__(self) -> None:
        super().__post_init__()
        Rule(self.lam, self.eta, self.top_h)  # checks them
        number("first", self.first, "a number from 1 to 100", lambda value: 1 <= value <= 100)
        number("between", self.between, "a number between 0 and 1", lambda value: 0 < value < 1)

    def blocks(self, blocks: int, default: int) -> tuple[int, ...]:
        later = default + min(max(1, round((blocks - default) * self.between)), blocks - default - 1)
        return (default, later) if self.first > 1 and blocks >= ENOUGH else (default,)

    def stages(self, keep: int, tokens: int, blocks: int) -> list[int]:
        cuts = self.blocks(blocks, 2)
        if self.match == "layer-mean":
            keep = self._last(keep, tokens, cuts, blocks)
        last = min(tokens, keep)
        return [self._first(last, tokens), last] if len(cuts) > 1 else [last]

    def _first(self, keep: float, tokens: int) -> int:
        """How many the first of two cuts leaves. More than half would be long to choose and save little."""
        return max(round(keep), min(round(self.first * keep), tokens // 2))

    def _last(self, mean: int, tokens: int, cuts: tuple[int, ...], blocks: int) -> int:
        """How many the last cut leaves, for a mean over the blocks, as nearly as it can be."""

        def total(keep: int) -> int:
            left = [tokens, *([self._first(keep, tokens)] if len(cuts) > 1 else []), keep]
            spans = [end - start for start, end in pairwise([0, *cuts, blocks])]
            return sum(n * span for n, span in zip(left, spans, strict=True))

        lowest, wanted = total(1) / blocks, mean * blocks
        require(mean >= lowest, "keep", mean, f"at least {lowest:.4g} as a mean with a first cut at block {cuts[0]}")
        below = bisect_right(range(1, tokens + 1), wanted, key=total)
        return min((below, min(below + 1, tokens)), key=lambda keep: abs(total(keep) - wanted))

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        return {"stages": self.stages(keep, tokens, blocks)}

    def choose(self, signals: Signals, keep: int) -> Selection:
        x, q = signals.visual, signals.text
        if signals.cut:
            return select(x, q, keep, eta=self.eta, top_h=self.top_h)  # type: ignore[return-value]
        rows = unit(x)
        every = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        phi = alignment(unit(q).to(rows) @ rows.mT, rows.norm(dim=-1), every, self.top_h)
        strength = self.lam * phi
        weight = (strength - strength.max()).exp().clamp_min(1e-30)
        return select(x, q, keep, eta=self.eta, weight=weight)  # type: ignore[return-value]
