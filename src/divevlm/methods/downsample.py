"""downsample: show the model a smaller image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import BeforeLLM


@dataclass(frozen=True, kw_only=True)
class Downsample(BeforeLLM):
    """The tower sees the image on the largest grid of at most K patches whose sides differ by one at most.

    64 of 576 tokens is 8 x 8 exactly; 192 is 13 x 14 = 182, 128 is 11 x 11 = 121: never more than K. Only for families whose
    patches are the visual tokens, one each (LLaVA-1.5); processors that make grids of any size (Qwen) have `max_pixels`.
    """

    name = "downsample"
    paper = "baseline"
    stage = "vision tower"
    merges = True
    cost = "none"

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
        """What the tower has left, at the places of the patches that stand for their neighbours."""
        if signals.vision is None or signals.vision.owner is None or signals.hidden is None:
            raise ValueError("model must be one whose tower saw the smaller image, got visual tokens as they were")
        owner = signals.vision.owner.cpu()
        slots, sizes = owner.unique(return_counts=True)
        members = [(owner == slot).nonzero()[:, 0].tolist() for slot in slots]
        rows = Rows(slots, signals.hidden[slots.to(signals.hidden.device)], members)
        return Selection(slots, sizes.float(), rows=rows)


def grid(keep: int) -> tuple[int, int]:
    """Rows and columns: as many as can be, but no more than `keep` in all, and the sides differ by one at most."""
    short = math.isqrt(keep)
    return short, short + (short * (short + 1) <= keep)
