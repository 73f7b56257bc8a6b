"""DIVE: pick, remove what the pick explains, score again (the paper's Algorithm 1 at block 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from divevlm.core.rule import Rule
from divevlm.core.select import select
from divevlm.core.selection import Selection
from divevlm.methods.base import Method, Signals


@dataclass(frozen=True, kw_only=True)
class DIVE(Method):
    """Pick the token with the most unexplained, prompt-relevant evidence; remove what it explains; score again."""

    lam: float = 1.5
    eta: float = 0.8
    top_h: int = 3
    updates: int | None = None
    feedback: Literal["last", "all"] = "last"
    score: Literal["fused", "prompt"] = "fused"
    trace: bool = False
    centre: bool = False  # not in the paper: take the means of the visual and of the text states out first

    name = "dive"
    paper = "Zhong et al., 2026"
    reads_text = True
    cost = "O(N² d + K (K + M) N)"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rule()

    def _rule(self) -> Rule:
        return Rule(self.lam, self.eta, self.top_h, self.updates, self.feedback, self.score)

    def select(self, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
        if self.centre:
            groups = [replace(g, visual=g.visual - g.visual.mean(0), text=g.text - g.text.mean(0)) for g in groups]
        settings = {
            name: getattr(self, name) for name in ("lam", "eta", "top_h", "updates", "feedback", "score", "trace")
        }
        if groups[0].visual.device.type == "cpu" or self.budget.energy is not None:
            budgets = [self.budget if self.budget.energy is not None else keep for keep in keeps]
            return [select(g.visual, g.text, keep, **settings) for g, keep in zip(groups, budgets, strict=True)]  # type: ignore[misc]
        x, q = (pad_sequence([getattr(g, name) for g in groups], batch_first=True) for name in ("visual", "text"))
        valid_x, valid_q = (
            torch.arange(z.shape[1], device=z.device)
            < torch.tensor([len(getattr(g, n)) for g in groups], device=z.device)[:, None]
            for n, z in (("visual", x), ("text", q))
        )
        return list(select(x, q, list(keeps), valid_x=valid_x, valid_q=valid_q, **settings))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class NoLanguage(DIVE):
    """The paper's "w/o L-G": energy alone."""

    lam: float = 0.0
    name = "dive-no-language"
    reads_text = False


@dataclass(frozen=True, kw_only=True)
class NoVisual(DIVE):
    """The paper's "w/o V-C": the prompt weight alone."""

    score: Literal["fused", "prompt"] = "prompt"
    name = "dive-no-visual"


@dataclass(frozen=True, kw_only=True)
class NoUpdate(DIVE):
    """The paper's "No update": the ranking of the initial scores."""

    updates: int | None = 0
    name = "dive-no-update"
