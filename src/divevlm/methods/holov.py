"""HoloV: do not just chase highlights, keep the holistic context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from divevlm.checks import require
from divevlm.core.crops import crop_places, crop_scores, crop_sizes
from divevlm.core.selection import Rows, Selection
from divevlm.core.top import top_k
from divevlm.methods.base import Needs, Signals
from divevlm.methods.each import BeforeLLM


@dataclass(frozen=True, kw_only=True)
class HoloV(BeforeLLM):
    """Runs of tokens ("crops") get places by attention and variety; within each the most attended tokens stay.

    crops     how many; None: int(1024 / 576 N / K), 16 for 64 of 576
    rescale   variety to the size of attention within each "crop" (the original: it then cancels) or over "all" tokens
    faithful  the original: places that a crop can't fill become zero rows, tokens come by attention within their crop (in
              input order where all of it stays), and a crop of one token weighs a thousandth of what others do
    """

    crops: int | None = None
    rescale: Literal["crop", "all"] = "crop"
    faithful: bool = False

    name = "holov"
    needs = Needs(vision=("saliency",))
    paper = "Zou et al., NeurIPS 2025"
    arxiv = "2510.02912"
    cost = "O(N² d / P)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.crops is None or self.crops >= 1, "crops", self.crops, "a count of at least 1")
        require(self.rescale in ("crop", "all"), "rescale", self.rescale, "'crop' or 'all'")

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        return {"crops": self._crops(keep, tokens)}

    def _crops(self, keep: int, tokens: int) -> int:
        return min(tokens, self.crops or max(1, int(1024 / 576 * tokens / keep)))

    def choose(self, signals: Signals, keep: int) -> Selection:
        attention = self.tower(signals, "saliency").float()
        n = len(attention)
        sizes = crop_sizes(n, self._crops(keep, n))
        scores, _ = crop_scores(signals.visual, attention, sizes, self.rescale)
        if self.faithful:
            means = torch.stack([crop.mean() for crop in attention.split(sizes)])
            scores = torch.where(torch.tensor(sizes, device=scores.device) == 1, means.to(scores), scores)
        places = crop_places(scores, sizes, keep, overflow=not self.faithful)
        picks, start = [], 0
        for crop, place in zip(attention.split(sizes), places, strict=True):
            whole = self.faithful and place >= len(crop)
            picks.append(start + (torch.arange(len(crop), device=crop.device) if whole else top_k(crop, place)))
            start += len(crop)
        order = torch.cat(picks)
        return self._as_released(signals, order, keep) if self.faithful else Selection(order, attention[order])

    def _as_released(self, signals: Signals, order: torch.Tensor, keep: int) -> Selection:
        hidden = self.given(signals.hidden, "hidden states")
        free = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
        free[order] = False
        slots = torch.cat([order, free.nonzero()[: keep - len(order), 0]])
        values = hidden[slots]
        values[len(order) :] = 0
        members = [[i] for i in order.tolist()] + [[]] * (keep - len(order))
        return Selection(slots, self.tower(signals, "saliency")[slots], rows=Rows(slots, values, members))
