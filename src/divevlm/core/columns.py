"""Columns of the Gram matrix G = X X^T of the start rows: all at once, or only those that are picked.

Rows are never copied to normalise them: `scale` (one factor a row) is applied to the products.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

Way = Literal["auto", "gram", "picked"]

# Columns that the picked way computes together on a CPU: where the rows don't fit into the cache, reading them is the
# cost, and 32 columns are hardly dearer than one.
CACHE = 4_000_000  # numbers
AHEAD = (8, 32)


class Columns(Protocol):
    def column(self, s: Tensor, g: Tensor) -> Tensor:
        """[B, N], column s[b] of each sample. g: [B, N] the scores that led to the pick: who is likely to be next."""
        ...


def row_norms(z: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, rows] norms in the working precision, widening half-precision rows a piece at a time. z: [B, rows, d]"""
    if z.dtype == dtype:
        norms: Tensor = torch.linalg.vector_norm(z, dim=-1)
        return norms
    pieces = torch.split(z, 256, dim=-1)
    return (
        torch.stack([torch.linalg.vector_norm(part, dim=-1, dtype=dtype) for part in pieces]).square_().sum(0).sqrt_()
    )


def fill_gram(out: Tensor, x: Tensor, scale: Tensor) -> None:
    """out: [N, N] <- scaled x x^T. CPU: by blocks above the diagonal, mirrored (about 0.6 of the product's cost)."""
    n = x.shape[0]
    if x.dtype != out.dtype:  # half precision: widen N / 2 columns at a time (two pieces are alive at the turn)
        out.zero_()
        for part in torch.split(x, max(n // 2, 256), dim=1):
            wide = part.to(out.dtype)
            out.addmm_(wide, wide.T)
    elif x.device.type == "cpu" and n >= 256:
        step = -(-n // (4 if n < 2048 else 8))
        for i in range(0, n, step):
            j = min(i + step, n)
            torch.mm(x[i:j], x[i:].T, out=out[i:j, i:])
            out[j:, i:j] = out[i:j, j:].T
    else:
        torch.mm(x, x.T, out=out)
    out.mul_(scale[:, None]).mul_(scale)


def fill_product(out: Tensor, q: Tensor, x: Tensor, query_scale: Tensor, scale: Tensor) -> None:
    """out: [M, N] <- scaled q x^T, widening half-precision states at most N columns at a time."""
    if q.dtype == x.dtype == out.dtype:
        torch.mm(q, x.T, out=out)
    else:
        out.zero_()
        width = max(x.shape[0], 256)
        for a, b in zip(torch.split(q, width, dim=1), torch.split(x, width, dim=1), strict=True):
            out.addmm_(a.to(out.dtype), b.to(out.dtype).T)
    out.mul_(query_scale[:, None]).mul_(scale)


class Gram:
    """All columns, computed at once."""

    def __init__(self, x: Tensor, scale: Tensor) -> None:
        b, n, _ = x.shape
        self.matrix = scale.new_empty(b, n, n)
        self.row = torch.arange(b, device=x.device)
        for i in range(b):
            fill_gram(self.matrix[i], x[i], scale[i])

    def column(self, s: Tensor, g: Tensor) -> Tensor:
        if s.shape[0] == 1:
            return self.matrix[0].index_select(0, s)
        return self.matrix[self.row, s]


class Picked:
    """Only what is asked for: O(N K) memory. One product a step."""

    def __init__(self, x: Tensor, scale: Tensor) -> None:
        self.x = x.to(scale.dtype)
        self.scale = scale
        self.row = torch.arange(x.shape[0], device=x.device)

    def column(self, s: Tensor, g: Tensor) -> Tensor:
        picked = self.x[self.row, s] * self.scale[self.row, s][:, None]
        return (self.x @ picked[..., None]).squeeze(-1) * self.scale


class Ahead:
    """Like `Picked`, for one sample on a CPU: a missing column is computed together with those of the next best scores.

    Columns that were computed and not yet used are kept, at most `room` of them in all: O(N K) memory.
    """

    def __init__(self, x: Tensor, scale: Tensor, keep: int) -> None:
        self.x = x[0].to(scale.dtype)
        self.scale = scale[0]
        n = x.shape[1]
        self.block = min(AHEAD[self.x.numel() > CACHE], n)
        self.room = min(n, 2 * keep + self.block)
        self.stored = scale.new_empty(self.room, n)
        self.slot: dict[int, int] = {}  # token -> row of `stored`
        self.free = list(range(self.room))
        self.known = torch.zeros(n, dtype=torch.bool)

    def column(self, s: Tensor, g: Tensor) -> Tensor:
        token = int(s)
        if token not in self.slot:
            self._compute(token, g[0])
        row = self.slot.pop(token)
        self.free.append(row)  # a pick is asked for once; the row is overwritten by a later block at the earliest
        return self.stored[row : row + 1]

    def _compute(self, token: int, g: Tensor) -> None:
        if len(self.free) < self.block:  # forget what was guessed wrongly
            for other, row in self.slot.items():
                self.known[other] = False
                self.free.append(row)
            self.slot.clear()
        likely = g.masked_fill(self.known, -2)
        likely[token] = torch.inf
        tokens = likely.topk(self.block).indices
        rows = [self.free.pop() for _ in range(self.block)]
        self.known[tokens] = True
        self.slot.update(zip(tokens.tolist(), rows, strict=True))
        picked = self.x[tokens] * self.scale[tokens, None]
        self.stored[rows] = (picked @ self.x.T).mul_(self.scale)


def start_columns(x: Tensor, scale: Tensor, keep: int, way: Way) -> Columns:
    """x: [B, N, d], scale: [B, N] in the working precision."""
    if way == "gram":
        return Gram(x, scale)
    if x.device.type == "cpu" and x.shape[0] == 1:
        return Ahead(x, scale, keep)
    return Picked(x, scale)


def cheaper(x: Tensor, keep: int) -> Literal["gram", "picked"]:
    """The way that is expected to cost less; `picked` wherever the matrix would not pay for its memory."""
    _, n, d = x.shape
    return "gram" if (16 if n * d <= CACHE else 6) * keep > n else "picked"
