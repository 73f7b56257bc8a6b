"""DIVE with what was found beyond the paper: a prompt that keeps its say, two cuts, groups that are measured."""

from __future__ import annotations

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
    """At DIVE's block `first` times as many tokens as are kept in the end, a third of the remaining blocks later the rest.

    The first cut is DIVE whose picks explain visual states only: what the prompt asks for stays as it was at the start. The
    second is DIVE as it is. Kept tokens have the attention of the groups that they stand for (`proportional`).

    lam    strength of the prompt at the first cut
    first  4: as much work as DIVE with twice the tokens; 2: with four thirds of them; 1: a single cut, the first one
    match  "layer-mean" counts with a first cut at block 2; a family that cuts later (Qwen3-VL) has more
    """

    norm: Norm = "final"
    proportional: bool | float | Literal["uniform", "measured"] = "measured"
    lam: float = 3.0
    eta: float = 0.8
    top_h: int = 3
    first: float = 4.0

    name = "dive-plus"
    paper = "this project"
    cost = "O(N² d + 16 K² N)"

    def __post_init__(self) -> None:
        super().__post_init__()
        Rule(self.lam, self.eta, self.top_h)  # checks them
        number("first", self.first, "a number from 1 to 100", lambda value: 1 <= value <= 100)

    def blocks(self, blocks: int, default: int) -> tuple[int, ...]:
        later = default + round((blocks - default) / 3)
        return (default, later) if self.first > 1 and blocks >= ENOUGH else (default,)

    def stages(self, keep: int, tokens: int, blocks: int) -> list[int]:
        cuts = self.blocks(blocks, 2)
        factors = (self.first, 1.0)[-len(cuts) :]
        if self.match == "layer-mean":
            behind = sum(f * (end - cut) for f, (cut, end) in zip(factors, pairwise([*cuts, blocks]), strict=True))
            lowest = (cuts[0] * tokens + behind) / blocks
            require(
                keep >= lowest, "keep", keep, f"at least {lowest:.4g} as a mean with a first cut at block {cuts[0]}"
            )
            mean, keep = keep, round((keep * blocks - cuts[0] * tokens) / behind)
            if len(cuts) > 1 and self.first * keep > tokens:  # the first cut drops nothing
                keep = round((mean * blocks - cuts[1] * tokens) / (blocks - cuts[1]))
        return [min(tokens, round(factor * keep)) for factor in factors]

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
