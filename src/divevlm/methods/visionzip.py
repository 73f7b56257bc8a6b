"""VisionZip: longer is better but not necessary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.contextual import contextual_rows, nearest_target, target_places
from divevlm.core.selection import Selection
from divevlm.core.top import top_k
from divevlm.methods.base import Needs, Signals
from divevlm.methods.pieces import Piece, assembled
from divevlm.methods.views import Apart, part


@dataclass(frozen=True, kw_only=True)
class VisionZip(Apart):
    """The tokens that CLS attends to most, CLS itself, and the rest merged into a few evenly spaced ones.

    contextual  how many merged rows of a view's places (None: 10 of 64, as the authors split 54 + 10)
    merge       "add" the mean of the merged to their target (the released code), or take the "mean" of all (the paper)

    Towers without CLS: saliency is the attention received, and no CLS row is kept. Where rows are pooled behind the tower,
    merging is done on the projected rows, which stay at their targets' places.
    """

    norm: Literal["final", "next", "none"] = "none"
    contextual: int | None = None
    merge: Literal["add", "mean"] = "add"

    name = "visionzip"
    needs = Needs(vision=("saliency", "keys", "features"))
    default_layer = 0
    default_positions = "compact"
    paper = "Yang et al., CVPR 2025"
    stage = "vision tower"
    merges = True
    cost = "O(N K d_h)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.merge in ("add", "mean"), "merge", self.merge, "'add' or 'mean'")

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        dominant, contextual = split(keep // views if self.apart else keep, self.contextual)
        return {"dominant": dominant, "contextual": contextual, "views": views if self.apart else 1}

    def choose(self, signals: Signals, keep: int) -> Selection:
        parts = self.parts(signals, keep)
        return assembled(signals, [self.piece(part(signals, tokens), tokens, place) for tokens, place in parts])

    def piece(self, signals: Signals, tokens: Tensor, keep: int) -> Piece:
        """Of one view. tokens: [n] its tokens within the group"""
        saliency, keys = self.tower(signals, "saliency"), self.tower(signals, "keys")
        hidden, vision = self.given(signals.hidden, "hidden states"), signals.vision
        assert vision is not None
        head = vision.cls is not None and vision.project is not None
        dominant, contextual = split(keep, self.contextual)
        picked = top_k(saliency, dominant - head)
        free = torch.ones_like(saliency, dtype=torch.bool)
        free[picked] = False
        rest = free.nonzero()[:, 0]
        piece = Piece(tokens[picked], saliency[picked])
        if contextual:
            x = hidden if vision.project is None else self.tower(signals, "features")
            at = target_places(len(rest), contextual).to(rest.device)
            joined = nearest_target(keys[rest], at)
            piece.targets, piece.rows = tokens[rest[at]], contextual_rows(x[rest], at, joined, self.merge)
            piece.members = [tokens[rest[joined == j]].tolist() for j in range(len(at))]
            free[rest[at]] = False
        if head:
            assert vision.cls is not None
            piece.cls = vision.cls[vision.tile[:1]]
            piece.slot = int(tokens[free.nonzero()[0, 0]])
        return piece


def split(keep: int, contextual: int | None = None) -> tuple[int, int]:
    """Dominant (CLS among them) and contextual: 192 = 162 + 30, 128 = 108 + 20, 64 = 54 + 10, 32 = 27 + 5."""
    merged = math.floor(keep * 10 / 64 + 0.5) if contextual is None else contextual
    merged = min(merged, keep - 1)
    return keep - merged, merged
