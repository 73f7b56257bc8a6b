"""downsample: show the model a smaller image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import Each


@dataclass(frozen=True, kw_only=True)
class Downsample(Each):
    """The tower sees the image on the largest grid of at most K patches whose sides differ by one at most.

    64 of 576 tokens is 8 x 8 exactly; 192 is 13 x 14 = 182, 128 is 11 x 11 = 121: never more than K. Families whose processor
    makes grids of any size (Qwen) are asked for smaller images there (`max_pixels`), so they are refused here.
    """

    norm: Literal["final", "next", "none"] = "none"

    name = "downsample"
    default_layer = 0
    default_positions = "compact"
    paper = "baseline"
    stage = "vision tower"
    merges = True
    cost = "none"
    families = ("llava",)

    def in_tower(self, plain: bool) -> bool:
        return True

    def smaller(self, pixels: Tensor, patch: int) -> Tensor:
        tokens = (pixels.shape[-2] // patch) * (pixels.shape[-1] // patch)
        keep = self.budget.tokens(tokens)
        if keep >= tokens:
            return pixels
        rows, columns = grid(keep)
        size = (rows * patch, columns * patch)
        resized: Tensor = nn.functional.interpolate(pixels.float(), size, mode="bilinear", antialias=True)
        return resized.to(pixels.dtype)

    def stay(self, cut: int, keep: int, tokens: int, blocks: int) -> int:
        return keep if keep >= tokens else math.prod(grid(keep))

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        return {} if keep >= tokens else {"grid": list(grid(keep))}

    def choose(self, signals: Signals, keep: int) -> Selection:
        return thinned(signals)


def grid(keep: int) -> tuple[int, int]:
    """Rows and columns: as many as can be, but no more than `keep` in all, and the sides differ by one at most."""
    short = math.isqrt(keep)
    return short, short + (short * (short + 1) <= keep)


def thinned(signals: Signals) -> Selection:
    """What the tower has left, at the places of the patches that stand for their neighbours."""
    if signals.vision is None or signals.vision.owner is None or signals.hidden is None:
        raise ValueError("model must be one whose tower could be thinned out, got visual tokens as they were")
    owner = signals.vision.owner.cpu()
    slots, sizes = owner.unique(return_counts=True)
    members: list[list[int]] = [[] for _ in slots]
    for token, group in enumerate(torch.searchsorted(slots, owner).tolist()):
        members[group].append(token)
    return Selection(slots, sizes.float(), rows=Rows(slots, signals.hidden[slots.to(signals.hidden.device)], members))
