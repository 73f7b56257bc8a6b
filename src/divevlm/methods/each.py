"""What most methods share: one group of candidates at a time, and a fixed number of them that is kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.selection import Selection
from divevlm.core.top import top_k
from divevlm.methods.base import Method, Norm, Signals, Stage


@dataclass(frozen=True, kw_only=True)
class Each(Method):
    """A method that decides on each group of candidates by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.budget.energy is None, "keep", self.budget, f"a count or a share for {self.name}")

    def select(self, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
        return [self._choose(group, keep) for group, keep in zip(groups, keeps, strict=True)]

    @torch.no_grad()
    def _choose(self, signals: Signals, keep: int) -> Selection:
        n = len(signals.visual)
        if keep >= n:
            every = torch.arange(n, device=signals.visual.device)
            return Selection(every, torch.ones(n, device=every.device))
        return self.choose(signals, keep)

    @abstractmethod
    def choose(self, signals: Signals, keep: int) -> Selection:
        """Keep some of the candidates: 1 <= keep < n."""

    def given(self, signal: Tensor | None, what: str) -> Tensor:
        """A signal that the method can't do without."""
        if signal is None:
            raise ValueError(f"{self.name} must be used where there are {what}, got none")
        return signal

    def tower(self, signals: Signals, name: Literal["saliency", "first_saliency", "keys", "features"]) -> Tensor:
        """A signal of the vision tower, on the device of the hidden states. [n] or [n, c]"""
        signal = None if signals.vision is None else getattr(signals.vision, name)
        return self.given(signal, f"{name} of a vision tower").to(signals.visual.device)


@dataclass(frozen=True, kw_only=True)
class BeforeLLM(Each):
    """A method that cuts in front of the first block, on rows as they are; kept tokens are numbered anew."""

    norm: Norm = "none"

    default_layer = 0
    default_positions = "compact"
    stage: ClassVar[Stage] = "before the LLM"


def ranked(scores: Tensor, keep: int) -> Selection:
    """The `keep` candidates with the highest scores [n]."""
    order = top_k(scores, keep)
    return Selection(order, scores[order])
