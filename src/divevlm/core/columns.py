"""Columns of the Gram matrix G = X X^T of one sample on a CPU: all at once, or only those that are picked."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from divevlm.core.products import fill_gram, fill_product

Way = Literal["auto", "gram", "picked"]

# Columns that the picked way computes together: where the rows don't fit into the cache, reading them is the cost, and
# 32 columns are hardly dearer than one.
CACHE = 4_000_000  # numbers
AHEAD = (8, 32)


class Columns(Protocol):
    def column(self, s: int, scores: Tensor) -> Tensor:
        """[N], column s. scores: [N], those that led to the pick: who is likely to be next."""
        ...


class AllColumns:
    """All columns, computed at once."""

    def __init__(self, x: Tensor, scale: Tensor) -> None:
        self.matrix = scale.new_empty(x.shape[0], x.shape[0])
        fill_gram(self.matrix, x, scale)

    def column(self, s: int, scores: Tensor) -> Tensor:
        return self.matrix[s]


class PickedColumns:
    """Only what is asked for, together with the columns of the next best scores.

    Columns that were computed and not yet used are kept, at most `room` of them in all: O(N K) memory.
    """

    def __init__(self, x: Tensor, scale: Tensor, keep: int) -> None:
        self.x = x.to(torch.promote_types(x.dtype, torch.float32))
        self.scale = scale
        n = x.shape[0]
        self.block = min(AHEAD[self.x.numel() > CACHE], n)
        self.room = min(n, 2 * keep + self.block)
        self.stored = scale.new_empty(self.room, n)
        self.slot: dict[int, int] = {}  # token -> row of `stored`
        self.free = list(range(self.room))
        self.known = torch.zeros(n, dtype=torch.bool)

    def column(self, s: int, scores: Tensor) -> Tensor:
        if s not in self.slot:
            self._compute(s, scores)
        row = self.slot.pop(s)
        self.known[s] = False
        self.free.append(row)  # a pick is asked for once; the row is overwritten by a later block at the earliest
        return self.stored[row]

    def _compute(self, s: int, scores: Tensor) -> None:
        if len(self.free) < self.block:  # forget what was guessed wrongly
            self.free += self.slot.values()
            self.slot.clear()
            self.known.zero_()
        likely = scores.masked_fill(self.known, -torch.inf)
        likely[s] = torch.inf
        tokens = [i for i in likely.topk(self.block).indices.tolist() if i not in self.slot]
        rows = [self.free.pop() for _ in tokens]
        self.known[tokens] = True
        self.slot.update(zip(tokens, rows, strict=True))
        block = self.scale.new_empty(len(tokens), len(self.scale))
        fill_product(block, self.x[tokens], self.x, self.scale[tokens], self.scale)
        self.stored[rows] = block


def cheaper(n: int, d: int, keep: int, device: str) -> Literal["gram", "picked"]:
    """The way that is expected to cost less (CPU: measured; GPU: by the model of docs/selection-on-a-gpu.md)."""
    a_pick = 24 if device != "cpu" else 16 if n * d <= CACHE else 6  # columns of G for the price of one that is picked
    return "gram" if a_pick * keep > n else "picked"
