"""What the comparison methods share: one group of tokens at a time, a fixed number of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.selection import Selection
from divevlm.core.top import top_k
from divevlm.methods.base import Method, Signals


@dataclass(frozen=True, kw_only=True)
class Each(Method):
    """A method that decides on each group by itself."""

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
        """Fewer than there are: 1 <= keep < n."""

    def given(self, signal: Tensor | None, what: str) -> Tensor:
        """A signal that the method can't do without."""
        if signal is None:
            raise ValueError(f"{self.name} must be used where there are {what}, got none")
        return signal

    def tower(self, signals: Signals, name: Literal["saliency", "first_saliency", "keys", "features"]) -> Tensor:
        """What the vision tower thought, beside the hidden states. [n] or [n, c]"""
        found = None if signals.vision is None else getattr(signals.vision, name)
        return self.given(found, f"{name} of a vision tower").to(signals.visual.device)


def ranked(scores: Tensor, keep: int) -> Selection:
    """The `keep` best tokens by their scores [n]."""
    order = top_k(scores, keep)
    return Selection(order, scores[order])
