"""How often the picks differ from float64's on hidden states of an embedded model, and what that does to its answers.

python -m training.precision [llava|qwen2vl] [QUESTIONS] [KEEP]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from divevlm_tiny.splits import SIZES

from divevlm.core.select import select
from divevlm.core.selection import Selection
from divevlm.experiments.answering import Answerer
from divevlm.experiments.tasks import items
from divevlm.loading import load
from divevlm.methods.base import Signals
from divevlm.methods.dive import DIVE

BATCH = 16
DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class At(DIVE):
    """DIVE on states rounded to a dtype. Notes each selection beside float64's on the same rounded states."""

    dtype: str = "float32"
    pairs: list[tuple[list[int], list[int]]] = field(default_factory=list, compare=False)

    def select(self, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
        dtype = getattr(torch, self.dtype)
        groups = [replace(group, visual=group.visual.to(dtype), text=group.text.to(dtype)) for group in groups]
        found = super().select(groups, keeps)
        for group, keep, picks in zip(groups, keeps, found, strict=True):
            exact = select(group.visual.double(), group.text.double(), keep)
            assert isinstance(exact, Selection)
            self.pairs.append((picks.order.tolist(), exact.order.tolist()))
        return found


def measure(model: str = "llava", n: int = 200, keep: int | float = 64) -> list[dict[str, Any]]:
    """n: questions, an eighth of each task; keep: tokens, or a share of them"""
    answerer = Answerer(*load(model))
    methods = {dtype: At(keep=keep, dtype=dtype) for dtype in DTYPES}
    rights: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
    asked = items(["embedded"], max(1, n // 8), sizes=SIZES if model == "qwen2vl" else ())
    for begin in range(0, len(asked), BATCH):
        for dtype, method in methods.items():
            found = answerer.generate(asked[begin : begin + BATCH], method, new_tokens=4)
            rights[dtype] += [one.score for one in found]
    start = [set(exact) for _, exact in methods["float64"].pairs]
    rows = []
    for dtype, method in methods.items():
        kept = [(set(mine), set(exact)) for mine, exact in method.pairs]
        moved = sum(len(mine - before) for (mine, _), before in zip(kept, start, strict=True))
        turned = sum(one != other for one, other in zip(rights[dtype], rights["float64"], strict=True))
        rows.append(
            {
                "states": dtype,
                "selections": len(kept),
                "other order": sum(mine != exact for mine, exact in method.pairs),
                "other tokens": sum(mine != exact for mine, exact in kept),
                "tokens differ by rounding the states": moved / sum(len(mine) for mine, _ in kept),
                "right": sum(rights[dtype]),
                "answers that turn": turned,
            }
        )
    return rows


if __name__ == "__main__":
    model, n, keep, *_ = [*sys.argv[1:], *("llava", "200", "64")[len(sys.argv) - 1 :]]
    for line in measure(model, int(n), float(keep) if "." in keep else int(keep)):
        sys.stdout.write(f"{line}\n")
