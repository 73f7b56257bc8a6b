"""DIVE: pick, remove what the pick explains, score again (the paper's Algorithm 1 at block 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
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
    arxiv = "2608.04496"
    reads_text = True
    cost = "O(N² d + K (K + M) N)"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rule()  # checks the settings

    def rule(self) -> Rule:
        return Rule(self.lam, self.eta, self.top_h, self.updates, self.feedback, self.score)

    def select(self, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
        if self.centre:
            groups = [replace(g, visual=g.visual - g.visual.mean(0), text=g.text - g.text.mean(0)) for g in groups]
        if self.budget.energy is not None:
            return [self._select(group.visual, group.text, self.budget) for group in groups]
        if groups[0].visual.device.type == "cpu":
            return [self._select(group.visual, group.text, k) for group, k in zip(groups, keeps, strict=True)]
        x, valid_x = padded([group.visual for group in groups])  # an accelerator takes all groups in one loop
        q, valid_q = padded([group.text for group in groups])
        return list(self._select(x, q, list(keeps), valid_x=valid_x, valid_q=valid_q))

    def _select(self, x: Tensor, q: Tensor, keep: Any, **masks: Any) -> Any:
        """A Selection of states [n, d], Selections of [B, n, d]."""
        return select(x, q, keep, trace=self.trace, **asdict(self.rule()), **masks)


def padded(states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """[B, n, d] with zeros behind the shorter ones, and [B, n] bool: which rows are real."""
    batch = pad_sequence(list(states), batch_first=True)
    lengths = torch.tensor([len(rows) for rows in states], device=batch.device)
    return batch, torch.arange(batch.shape[1], device=batch.device) < lengths[:, None]


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
    """Frozen scores, the paper's "No update": the ranking of the initial scores."""

    updates: int | None = 0
    name = "dive-no-update"
