"""The loop's arithmetic in two passes over memory, compiled by numba (extra `fast`): one sample on a CPU.

The same numbers as `gram.State`, whose documentation holds here; eager torch needs some seventy calls a step for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from divevlm.core.columns import Gram
from divevlm.core.gram import Picks, State

LONG = 400_000  # numbers from which replaying the updates is left to torch, which uses every core for it
BLOCK = 512  # tokens whose cross-similarities and running maxima stay in the first-level cache


class FusedState(State):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.columns is None or self.energy.shape[0] != 1:
            raise ValueError("the fused loop takes one sample, and X X^T by columns")
        self._energy, self._queries, self._inner, self._pairs = (
            z[0].numpy() for z in (self.energy, self.query_energy, self.inner, self.pairs)
        )
        h = min(self.rule.top_h, self.texts)
        self._top = np.zeros((h, self._energy.size), self._energy.dtype)  # the h largest of each column, descending
        self._soft: float = self.soft.item()
        nothing = np.zeros((self.texts, 2), self._energy.dtype)
        _cross(self._inner, np.zeros((2, self._energy.size), self._energy.dtype), nothing, self._top)

    def feed_back(self, s: Tensor, g: Tensor) -> None:
        assert self.columns is not None
        eta, two_sided, replay = self.rule.eta, self.rule.two_sided, self.used
        if replay * self._energy.size > LONG:
            column, replay = self._column(s, g)[0, 0], 0
        else:
            column = self.columns.column(s[:, 0], g)[0]
        inverse = _visual(
            column.numpy(),
            self._pairs,
            replay,
            self._pairs[self.used],
            int(s),
            self._energy,
            self.floor,
            eta,
            two_sided,
        )
        along = _prompt(self._inner[:, int(s)] * inverse, self._queries, eta, two_sided)
        _cross(self._inner, self._pairs[self.used], along, self._top)
        self.used += 1

    def score(self, gone: Tensor) -> tuple[Tensor, Tensor]:
        if not self.texts:
            return super().score(gone)
        g, phi = torch.empty_like(gone), torch.empty_like(gone)
        fused = self.rule.score == "fused"
        _score(self._top, self._energy, gone[0].numpy(), self._soft, self.rule.lam, fused, g[0].numpy(), phi[0].numpy())
        return g, phi

    def pick(self, g: Tensor, tie: Tensor) -> tuple[Tensor, Tensor]:
        s, best = _pick(g[0].numpy(), tie.item())
        return torch.tensor([[s]]), torch.tensor([[best]], dtype=g.dtype)

    def all_picks(self, gone: Tensor, keep: int) -> Picks | None:
        if not self.texts or not isinstance(self.columns, Gram) or keep * self._energy.size > LONG:
            return None
        found = _all_picks(
            self.columns.matrix[0].numpy(), self._pairs, self._inner, self._queries, self._energy, self._top,
            gone[0].clone().numpy(), self.floor, self._soft, 4 * torch.finfo(gone.dtype).eps,
            self.rule.lam, self.rule.eta, self.rule.two_sided, self.rule.score == "fused", keep,
        )  # fmt: skip
        order, scores, left = (torch.from_numpy(z)[None] for z in found)
        return Picks(order, scores, left, None)


@njit(cache=True, nogil=True)
def _all_picks(  # type: ignore[no-untyped-def]
    matrix, pairs, inner, queries, energy, top, gone, floor, soft, equal, lam, eta, two_sided, fused, keep
):
    order = np.empty(keep, np.int64)
    scores = np.empty(keep, energy.dtype)
    left = np.empty(keep + 1, energy.dtype)
    g, phi = np.empty_like(energy), np.empty_like(energy)
    tie = 0.0
    left[0] = energy.sum()
    for t in range(keep):
        _score(top, energy, gone, soft, lam, fused, g, phi)
        if t == 0:
            tie = equal * g.max()
        s, best = _pick(g, tie)
        order[t], scores[t] = s, best
        gone[s] = -1
        inverse = _visual(matrix[s], pairs, t, pairs[t], s, energy, floor, eta, two_sided)
        along = _prompt(inner[:, s] * inverse, queries, eta, two_sided)
        _cross(inner, pairs[t], along, top)
        left[t + 1] = energy.sum()
    return order, scores, left


@njit(cache=True, nogil=True)
def _visual(column, pairs, replay, pair, s, energy, floor, eta, two_sided):  # type: ignore[no-untyped-def]
    """Store (m, a) of pick s in `pair`, update the energies, return 1 / |x_s|. The first `replay` updates are missing."""
    m, a = pair[0], pair[1]
    inverse = energy.dtype.type(1 / np.sqrt(max(energy[s], floor)))
    m[:] = column
    for t in range(replay):
        at_m, at_a = pairs[t, 0, s], pairs[t, 1, s]
        for i in range(m.size):
            m[i] -= at_a * pairs[t, 0, i] + at_m * pairs[t, 1, i]
    eta = energy.dtype.type(eta)
    half = energy.dtype.type(0.5)
    for i in range(m.size):
        b = m[i] * inverse
        a[i] = eta * (b if two_sided or b > 0 else 0)
        m[i] = b - half * a[i]
        left = energy[i] - (m[i] * a[i] + m[i] * a[i])
        energy[i] = left if left > floor else 0
    return inverse


@njit(cache=True, nogil=True)
def _prompt(p, queries, eta, two_sided):  # type: ignore[no-untyped-def]
    """(w, v) of every prompt token; updates their energies."""
    along = np.empty((p.size, 2), p.dtype)
    for j in range(p.size):
        w = p.dtype.type(eta) * (p[j] if two_sided or p[j] > 0 else 0)
        v = p[j] - w / 2
        along[j, 0], along[j, 1] = w, v
        queries[j] -= 2 * v * w
    return along


@njit(cache=True, nogil=True)
def _cross(inner, pair, along, top):  # type: ignore[no-untyped-def]
    """inner -= w m^T + v a^T, and the h largest positive entries of each column of the result, in one pass."""
    h, n = top.shape
    top[:] = 0
    carry = np.empty(BLOCK, inner.dtype)
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        for j in range(inner.shape[0]):
            m, a = pair[0, begin:end], pair[1, begin:end]
            _subtract(inner[j, begin:end], m, a, along[j, 0], along[j, 1], carry)
            for k in range(h):
                _insert(carry, top[k, begin:end])


@njit(cache=True, nogil=True)
def _subtract(row, m, a, w, v, result):  # type: ignore[no-untyped-def]
    for i in range(row.size):
        value = row[i] - (w * m[i] + v * a[i])
        row[i] = value
        result[i] = value


@njit(cache=True, nogil=True)
def _insert(carry, best):  # type: ignore[no-untyped-def]
    """best keeps the larger, carry the smaller of the two, element by element."""
    for i in range(best.size):
        one, two = carry[i], best[i]
        best[i] = max(one, two)
        carry[i] = min(one, two)


@njit(cache=True, nogil=True)
def _pick(g, tie):  # type: ignore[no-untyped-def]
    """The first index whose score is within `tie` of the best, and the best score."""
    best = g[0]
    for i in range(1, g.size):
        best = max(best, g[i])
    for i in range(g.size):
        if g[i] >= best - tie:
            return i, best
    return 0, best


@njit(cache=True, nogil=True)
def _score(top, energy, gone, soft, lam, fused, g, phi):  # type: ignore[no-untyped-def]
    highest = energy.dtype.type(0)
    for i in range(energy.size):
        total = energy.dtype.type(0)
        for k in range(top.shape[0]):
            total += top[k, i]
        able = energy[i] > 0 and gone[i] == 0
        phi[i] = total / np.sqrt(energy[i]) if able else 0
        highest = max(highest, phi[i])
    below = energy.dtype.type(highest + soft)
    for i in range(energy.size):
        phi[i] /= below
        if gone[i] != 0:
            g[i] = -1
        else:
            factor = np.exp(energy.dtype.type(lam) * phi[i])
            g[i] = factor * energy[i] if fused else factor
