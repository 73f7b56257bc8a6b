"""ResPrune: residual energy times text relevance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.select import select
from divevlm.core.selection import Selection
from divevlm.core.top import unit
from divevlm.methods.base import Needs, Signals
from divevlm.methods.each import BeforeLLM
from divevlm.methods.words import content_rows

EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class ResPrune(BeforeLLM):
    """The token with the largest part outside the span of the picks, times relevance^alpha; then project it out.

    No code was published: relevance is the largest cosine to a content word, from 0 to 1 over the image's tokens; rows are
    not normalised. tokenizer: of the language model, to find content words; None: every prompt token counts.
    This is DIVE's loop with two-sided subtraction, eta = 1 and a fixed weight.
    """

    tokenizer: Any = field(default=None, repr=False, compare=False)
    alpha: float = 1.0

    name = "resprune"
    needs = Needs(embeds=True)
    paper = "Li et al., 2026"
    arxiv = "2603.21105"
    reads_text = True
    cost = "O(K N d)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha >= 0, "alpha", self.alpha, "a number of at least 0")

    def choose(self, signals: Signals, keep: int) -> Selection:
        words = self.given(signals.text_embeds, "embeddings of the prompt")[content_rows(signals, self.tokenizer)]
        if not len(words) or not self.alpha:
            return residual_energy(signals.visual, keep)
        weight = (relevance(signals.visual, words) ** self.alpha).clamp_min(torch.finfo(torch.float32).tiny)
        return residual_energy(signals.visual, keep, weight)


def relevance(x: Tensor, words: Tensor) -> Tensor:
    """[n] the largest cosine of each row to a word, min-max mapped to [1e-6, 1]. x: [n, d], words: [m, d]"""
    cosine = (unit(x) @ unit(words).T).amax(dim=1)
    low, high = cosine.min(), cosine.max()
    return (cosine - low).div_((high - low).clamp_min(EPS)).clamp_(EPS, 1)


def residual_energy(x: Tensor, keep: int, weight: Tensor | None = None) -> Selection:
    """Greedy on |x - projection on the picks|^2 times weight, rows as they are. x: [n, d]"""
    selection = select(x, x[:0], keep, lam=0.0, eta=1.0, two_sided=True, normalize=False, weight=weight)
    assert isinstance(selection, Selection)
    return selection
