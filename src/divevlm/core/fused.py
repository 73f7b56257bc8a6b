"""DIVE's loop compiled by numba (extra `fast`): one sample on a CPU, in two passes over memory a pick."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numba import njit
from torch import Tensor

from divevlm.core.columns import AllColumns, Columns, PickedColumns
from divevlm.core.gram import Loop, Picks, Problem, from_log

LONG = 400_000  # numbers from which replaying the updates is left to torch, which uses every core for it
BLOCK = 512  # tokens whose cross-similarities and running maxima stay in the first-level cache
FUSED, PROMPT, ENERGY = 0, 1, 2  # a score: log e + lam phi, lam phi, or the energy times a fixed weight


class Fused(Loop):
    def __init__(self, problem: Problem, way: Literal["gram", "picked"]) -> None:
        self.problem = problem
        x, scale, keep = problem.x[0], problem.scale[0], problem.keep
        self.columns: Columns = AllColumns(x, scale) if way == "gram" else PickedColumns(x, scale, keep)
        self.e = problem.energy[0].numpy().copy()
        self.e[self.e <= problem.floor] = 0
        self.queries = problem.query_energy[0].numpy().copy()
        self.C = problem.cross[0].numpy()
        self.top = np.zeros(
            (min(problem.rule.top_h, len(self.C)), self.e.size), self.e.dtype
        )  # the h largest of a column
        self.state = self.e, self.queries, self.C, self.top
        self.kind = ENERGY if not problem.logs else FUSED if problem.rule.score == "fused" else PROMPT
        self.gone = np.zeros(self.e.size, np.bool_) if problem.padding is None else problem.padding[0].numpy().copy()
        self.weight = np.ones_like(self.e) if problem.weight is None else problem.weight[0].numpy()
        self.pairs = problem.energy.new_empty(keep, 2, self.e.size)  # (m, a) of each update
        self._pairs = self.pairs.numpy()
        self.used = 0
        self.g, self.phi = np.empty_like(self.e), np.empty_like(self.e)
        self.order: list[int] = []
        self.best: list[float] = []
        self.left: list[float] = []  # before each pick
        self.rule = problem.floor, problem.rule.eta, problem.rule.two_sided
        self.scoring = problem.soft.item(), float(problem.rule.lam), self.kind
        _cross(self.C, np.zeros((2, self.e.size), self.e.dtype), np.zeros((len(self.C), 2), self.e.dtype), self.top)

    def score(self, t: int) -> None:
        _score(self.top, self.e, self.gone, self.weight, *self.scoring, self.g, self.phi)

    def pick(self, t: int) -> object:
        self.left.append(self.e.sum())
        s, best = _pick(self.g, self.e, self.weight, self.gone, self.problem.tie, self.kind)
        self.order.append(s)
        self.best.append(best)
        self.g[s], self.gone[s] = -np.inf, True
        return s

    def feed_back(self, s: object) -> None:
        assert isinstance(s, int)
        column, replay = self.columns.column(s, torch.from_numpy(self.g)), self.used
        if replay * self.e.size > LONG:
            pairs = self.pairs[:replay].flatten(0, 1)
            at = self.pairs[:replay, :, s].flip(1).flatten()  # (a, m) of s
            column, replay = torch.addmv(column, pairs.T, at, alpha=-1), 0
        _update(column.numpy(), self._pairs, replay, self.used, s, *self.state, *self.rule)
        self.used += 1

    def all_picks(self) -> Picks | None:
        if not isinstance(self.columns, AllColumns) or self._pairs.shape[0] * self.e.size > LONG:
            return None
        matrix = self.columns.matrix.numpy()
        tie = self.problem.tie
        results = _all_picks(
            matrix, self._pairs, self.state, self.gone, self.weight, self.rule, self.scoring, tie, self.g, self.phi
        )
        self.order, self.best, self.left = (list(z) for z in results)
        return self.picks(len(self.order))

    def energies(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.e)[None], torch.tensor(self.queries)[None].clamp_min_(0)

    def closed(self) -> Tensor:
        return torch.tensor(self.gone)[None]

    def scores(self) -> tuple[Tensor, Tensor]:
        g = torch.tensor(self.g)[None]
        if self.kind == ENERGY and len(self.C):  # lam = 0: alignments are for the trace alone
            _score(self.top, self.e, self.gone, self.weight, self.scoring[0], 0.0, PROMPT, self.g.copy(), self.phi)
        return g if self.kind == ENERGY else from_log(g), torch.tensor(self.phi)[None]

    def picks(self, count: int) -> Picks:
        dtype = self.problem.energy.dtype
        best = torch.tensor(np.array(self.best), dtype=dtype)[None]
        left = torch.tensor(np.array([*self.left, self.e.sum()][: count + 1]), dtype=dtype)[None]
        return Picks(torch.tensor(self.order)[None], best if self.kind == ENERGY else from_log(best), left)


@njit(cache=True, nogil=True)
def _all_picks(matrix, pairs, state, gone, weight, rule, scoring, tie, g, phi):  # type: ignore[no-untyped-def]
    e, queries, C, top = state
    floor, eta, two_sided = rule
    soft, lam, kind = scoring
    keep = pairs.shape[0]
    order = np.empty(keep, np.int64)
    best = np.empty(keep, e.dtype)
    left = np.empty(keep, e.dtype)
    for t in range(keep):
        left[t] = e.sum()
        _score(top, e, gone, weight, soft, lam, kind, g, phi)
        s, best[t] = _pick(g, e, weight, gone, tie, kind)
        order[t] = s
        gone[s] = True
        _update(matrix[s], pairs, t, t, s, e, queries, C, top, floor, eta, two_sided)
    return order, best, left


@njit(cache=True, nogil=True)
def _update(column, pairs, replay, t, s, e, queries, C, top, floor, eta, two_sided):  # type: ignore[no-untyped-def]
    """Feed pick s back, as update t. From its start column the first `replay` updates are missing."""
    m, a = pairs[t, 0], pairs[t, 1]
    inverse = e.dtype.type(1 / np.sqrt(e[s])) if e[s] > 0 else e.dtype.type(0)
    along = _prompt(C[:, s] * inverse, queries, eta, two_sided)
    m[:] = column
    for tau in range(replay):
        at_m, at_a = pairs[tau, 0, s], pairs[tau, 1, s]
        for i in range(m.size):
            m[i] -= at_a * pairs[tau, 0, i] + at_m * pairs[tau, 1, i]
    eta = e.dtype.type(eta)
    half, one = e.dtype.type(0.5), e.dtype.type(1)
    for i in range(m.size):
        b = min(max(m[i] * inverse, -one), one)
        a[i] = eta * (b if two_sided or b > 0 else 0)
        m[i] = b - half * a[i]
        left = e[i] - (m[i] * a[i] + m[i] * a[i])
        e[i] = left if left > floor else 0
    _cross(C, pairs[t], along, top)


@njit(cache=True, nogil=True)
def _prompt(p, queries, eta, two_sided):  # type: ignore[no-untyped-def]
    """(w, v) of every prompt token; updates their energies."""
    along = np.empty((p.size, 2), p.dtype)
    for j in range(p.size):
        bounded = min(max(p[j], p.dtype.type(-1)), p.dtype.type(1))
        w = p.dtype.type(eta) * (bounded if two_sided or bounded > 0 else 0)
        v = bounded - w / 2
        along[j, 0], along[j, 1] = w, v
        queries[j] -= 2 * v * w
    return along


@njit(cache=True, nogil=True)
def _cross(C, pair, along, top):  # type: ignore[no-untyped-def]
    """C -= w m^T + v a^T, and the h largest positive entries of each column of the result, in one pass."""
    h, n = top.shape
    top[:] = 0
    carry = np.empty(BLOCK, C.dtype)
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        for j in range(C.shape[0]):
            m, a = pair[0, begin:end], pair[1, begin:end]
            _subtract(C[j, begin:end], m, a, along[j, 0], along[j, 1], carry)
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
def _score(top, e, gone, weight, soft, lam, kind, g, phi):  # type: ignore[no-untyped-def]
    """g: the scores, of a kind; -inf for tokens that can't be picked. phi: the alignments behind them."""
    if kind == ENERGY:
        for i in range(e.size):
            phi[i] = 0
            g[i] = -np.inf if gone[i] else weight[i] * e[i]
        return
    highest = e.dtype.type(0)
    for i in range(e.size):
        total = e.dtype.type(0)
        for k in range(top.shape[0]):
            total += top[k, i]
        phi[i] = total / np.sqrt(e[i]) if e[i] > 0 and not gone[i] else 0
        highest = max(highest, phi[i])
    below = e.dtype.type(highest + soft)
    lam = e.dtype.type(lam)
    for i in range(e.size):
        phi[i] /= below
        if gone[i] or (kind == FUSED and e[i] == 0):
            g[i] = -np.inf
        else:
            g[i] = lam * phi[i] + (np.log(e[i]) if kind == FUSED else 0)


@njit(cache=True, nogil=True)
def _pick(g, e, weight, gone, tie, kind):  # type: ignore[no-untyped-def]
    """The first token that reaches the best score with `tie` more energy, and the best score."""
    best = e.dtype.type(-np.inf)
    for i in range(g.size):
        best = max(best, g[i])
    for i in range(g.size):
        if gone[i]:
            continue
        more = tie if kind == PROMPT else tie * weight[i] if kind == ENERGY else tie / e[i] if e[i] > 0 else 0.0
        if g[i] + more >= best and (kind != FUSED or g[i] + np.log1p(more) >= best):
            return i, best
    return -1, best
