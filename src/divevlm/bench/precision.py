"""How often the picks differ from float64's on hidden states of the embedded model, and what that does to its answers.

python -m divevlm.bench.precision [QUESTIONS] [KEEP]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from divevlm.core.select import select
from divevlm.core.selection import Selection
from divevlm.methods.base import Signals
from divevlm.methods.dive import DIVE

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


def measure(n: int = 200, keep: int = 64) -> list[dict[str, Any]]:
    from divevlm.engine.once import Once
    from divevlm.tiny.answers import answer, chunks, look
    from divevlm.tiny.shipped import load
    from divevlm.tiny.splits import questions

    network, processor = load("llava")
    methods = {dtype: At(keep=keep, dtype=dtype) for dtype in DTYPES}
    answers: dict[str, list[Any]] = {dtype: [] for dtype in DTYPES}
    once = Once(network)
    for chunk in chunks(questions("validation", n), processor):
        look(network, chunk)
        once.forget()
        for dtype, method in methods.items():
            answers[dtype] += answer(network, chunk, method, once)
    rows = []
    for dtype, method in methods.items():
        kept = [(set(mine), set(exact)) for mine, exact in method.pairs]
        start = [set(exact) for _, exact in methods["float64"].pairs]
        rows.append(
            {
                "states": dtype,
                "selections": len(kept),
                "other order": sum(mine != exact for mine, exact in method.pairs),
                "other tokens": sum(mine != exact for mine, exact in kept),
                "tokens differ by rounding the states": sum(
                    len(mine - before) for (mine, _), before in zip(kept, start, strict=True)
                )
                / (keep * len(kept)),
                "right": sum(one.right for one in answers[dtype]),
                "answers that turn": sum(
                    one.right != other.right for one, other in zip(answers[dtype], answers["float64"], strict=True)
                ),
            }
        )
    return rows


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    for line in measure(*given):
        sys.stdout.write(f"{line}\n")
