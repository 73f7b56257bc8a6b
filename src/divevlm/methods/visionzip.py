"""VisionZip: longer is better but not necessary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from divevlm.checks import require, whole
from divevlm.core.cluster import contextual_rows, nearest_target, target_places
from divevlm.core.selection import Rows, Selection
from divevlm.core.top import top_k
from divevlm.methods.base import Needs, Signals
from divevlm.methods.rows import Part, assembled, cls_row
from divevlm.methods.views import Apart


@dataclass(frozen=True, kw_only=True)
class VisionZip(Apart):
    """The tokens that CLS attends to most, CLS itself, and the rest merged into a few evenly spaced ones.

    contextual  how many merged rows of a view's places (None: 10 of 64, as the authors split 54 + 10)
    merge       "add" the mean of the merged to their target (the released code), or take the "mean" of all (the paper)

    Towers without CLS: saliency is the attention received, and no CLS row is kept. Where rows are pooled behind the tower,
    merging is done on the projected rows, which stay at their targets' places.
    """

    contextual: int | None = None
    merge: Literal["add", "mean"] = "add"

    name = "visionzip"
    needs = Needs(vision=("saliency", "keys", "features"))
    paper = "Yang et al., CVPR 2025"
    arxiv = "2412.04467"
    stage = "vision tower"
    merges = True
    cost = "O(N K d_h)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.merge in ("add", "mean"), "merge", self.merge, "'add' or 'mean'")
        if self.contextual is not None:
            whole("contextual", self.contextual, 0)

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        dominant, contextual = split(keep // views if self.apart else keep, self.contextual)
        return {"dominant": dominant, "contextual": contextual, "views": views if self.apart else 1}

    def choose(self, signals: Signals, keep: int) -> Selection:
        parts = [self.part(signals.of(tokens), tokens, place) for tokens, place in self.parts(signals, keep)]
        return assembled(signals, parts)

    def part(self, signals: Signals, tokens: Tensor, keep: int) -> Part:
        """Of one view. tokens: [n] its tokens within the group"""
        saliency, vision = self.tower(signals, "saliency"), signals.vision
        keys, hidden = self.tower(signals, "keys"), self.given(signals.hidden, "hidden states")
        assert vision is not None
        has_cls = vision.cls is not None and vision.project is not None
        dominant, contextual = split(keep, self.contextual)
        picked = top_k(saliency, dominant - has_cls)
        free = torch.ones_like(saliency, dtype=torch.bool)
        free[picked] = False
        part = Part(tokens, tokens[picked], saliency[picked])
        if contextual:
            rest = free.nonzero()[:, 0]
            at = target_places(len(rest), contextual).to(rest.device)
            target = nearest_target(keys[rest], at)  # [rest] whom each of them joins
            x = hidden if vision.project is None else self.tower(signals, "features")
            rows = contextual_rows(x[rest], at, target, self.merge)
            members = [tokens[rest[target == j]].tolist() for j in range(len(at))]
            part.merged = Rows(tokens[rest[at]], rows if vision.project is None else vision.project(rows), members)
            free[rest[at]] = False
        part.cls = cls_row(signals, tokens, free)
        return part


def split(keep: int, contextual: int | None = None) -> tuple[int, int]:
    """Dominant (CLS among them) and contextual: 192 = 162 + 30, 128 = 108 + 20, 64 = 54 + 10, 32 = 27 + 5."""
    merged = math.floor(keep * 10 / 64 + 0.5) if contextual is None else contextual
    merged = min(merged, keep - 1)
    return keep - merged, merged
