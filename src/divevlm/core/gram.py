"""DIVE in Gram space: the residual form's picks without residual matrices.

Scores use inner products only, and those have a closed update. With unit direction u of the pick, b = X u, p = Q u,
a = eta max(b, 0), w = eta max(p, 0) and the midpoints m = b - a/2, v = p - w/2:

    |x_i|^2 <- |x_i|^2 - 2 m_i a_i        Q X^T <- Q X^T - w m^T - v a^T        X X^T <- X X^T - m a^T - a m^T

Of X X^T only the column of the next pick is needed: its start value less what the stored (m, a) pairs took away.
The width d appears in the start products alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divevlm.core.columns import Columns
from divevlm.core.rule import EPS, Rule
from divevlm.core.selection import Trace
from divevlm.core.topsum import top_sum


@dataclass
class Picks:
    """The picks of a batch, `keep` for each sample."""

    order: Tensor  # [B, K]
    scores: Tensor  # [B, K]
    left: Tensor  # [B, K + 1] visual energy that is left before each pick and after the last
    traces: list[Trace] | None


class State:
    """Energies and inner products of a batch of start rows no longer than 1, under feedback.

    energy: [B, N], query_energy: [B, M]
    inner: [B, M, N] the cross-similarities Q X^T, or [B, M + N, N] with the whole of X X^T below them
    columns: where to get columns of the start X X^T from, if it is not in `inner`
    pooled: [B, 1] the number h of pooled prompt tokens
    weight: [B, N] fixed factors in place of exp(lam phi)
    """

    def __init__(
        self,
        energy: Tensor,
        query_energy: Tensor,
        inner: Tensor,
        columns: Columns | None,
        pooled: Tensor,
        keep: int,
        rule: Rule,
        weight: Tensor | None = None,
    ) -> None:
        # Energy that the precision can't tell from none (and never less than the paper's epsilon allows) is none.
        self.floor = max(8 * torch.finfo(energy.dtype).eps, EPS**2)
        self.energy, self.query_energy, self.inner, self.weight = self._floored(energy), query_energy, inner, weight
        self.columns, self.rule, self.soft = columns, rule, pooled * EPS
        b, n = energy.shape
        self.texts = inner.shape[1] - (n if columns is None else 0)
        self.pairs = energy.new_empty(b, 0 if columns is None else keep, 2, n)  # (m, a) of each update
        self.used = 0

    def _floored(self, energy: Tensor) -> Tensor:
        return torch.threshold_(energy, self.floor, 0)

    def _column(self, s: Tensor, g: Tensor) -> Tensor:
        """[B, 1, N] inner products of every visual residual with that of s, now: the start column less the updates."""
        assert self.columns is not None
        start = self.columns.column(s[:, 0], g)[:, None]
        if not self.used:
            return start
        b, _, _, n = self.pairs.shape
        pairs = self.pairs[:, : self.used].view(b, -1, n)
        at = _at(pairs, s).view(b, -1, 2).flip(2).view(b, 1, -1)  # (a, m) of s
        return torch.baddbmm(start, at, pairs, alpha=-1)

    def feed_back(self, s: Tensor, g: Tensor) -> None:
        """s: [B, 1] picks, g: [B, N] the scores that led to them. A pick without energy changes nothing
        that the precision can tell."""
        z = _at(self.inner, s)
        if self.columns is not None:
            z = torch.cat((z, self._column(s, g).mT), dim=1)
        z.mul_(self.energy.gather(1, s).clamp_min_(self.floor).rsqrt_()[..., None])  # p above b
        low = (z if self.rule.two_sided else z.clamp_min(0)) * self.rule.eta  # w above a
        mid = z.sub_(low, alpha=0.5)  # v above m
        both = torch.cat((low, mid), dim=2)
        pair = both[:, self.texts :].mT.flip(1)  # m, a
        change = low.mul_(mid).squeeze(2)
        self._floored(self.energy.sub_(change[:, self.texts :], alpha=2))
        if self.texts:
            self.query_energy.sub_(change[:, : self.texts], alpha=2)
        self.inner.baddbmm_(both[:, : self.inner.shape[1]], pair, alpha=-1)
        if self.columns is not None:
            self.pairs[:, self.used] = pair
        self.used += 1

    def score(self, gone: Tensor) -> tuple[Tensor, Tensor]:
        """g (Eq. 1; -1 for tokens that can't be picked) and phi (Eq. 7). gone: [B, N] -1 for those tokens, else 0."""
        able = torch.addcmul(self.energy, self.energy, gone)  # the energy of tokens that can be picked
        if not self.texts:
            g = able.add_(gone) if self.weight is None else torch.addcmul(gone, able, self.weight)
            return g, torch.zeros_like(g[:, :1])
        r = able.sqrt().div_(self.energy.clamp_min(self.floor))
        r.mul_(top_sum(self.inner[:, : self.texts], self.rule.top_h))
        phi = r.div_(r.amax(dim=1, keepdim=True).add_(self.soft))  # h times numerator and denominator of Eq. 7
        factor = torch.exp(phi * self.rule.lam)
        return torch.addcmul(gone, factor, able if self.rule.score == "fused" else gone + 1), phi

    def pick(self, g: Tensor, tie: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 1] the token to pick and [B, 1] its score: of those that the precision can't tell apart, the lowest index."""
        best = g.amax(dim=1, keepdim=True)
        return (g >= best - tie).view(torch.uint8).argmax(dim=1, keepdim=True), best

    def all_picks(self, gone: Tensor, keep: int) -> Picks | None:
        """The whole loop with an update after every pick, where the state can run it in one go."""
        return None


def _at(z: Tensor, s: Tensor) -> Tensor:
    """Column s of each sample. z: [B, rows, N], s: [B, 1] -> [B, rows, 1]"""
    if z.shape[0] == 1:
        return z.index_select(2, s[0])
    return z.gather(2, s[:, :, None].expand(-1, z.shape[1], 1))


def gram_select(state: State, gone: Tensor, keep: int, *, trace: bool = False, until: float | None = None) -> Picks:
    """The select - update - re-evaluate loop, `keep` picks for every sample of the batch.

    gone: [B, N] -1 for tokens that can't be picked (padding), else 0. until: stop early, once that share of the
    energy is explained in every sample.
    """
    updates = state.rule.update_steps(keep)
    if not trace and until is None and len(updates) == keep and (picks := state.all_picks(gone, keep)) is not None:
        return picks
    order: list[Tensor] = []
    scores: list[Tensor] = []
    left = [state.energy.sum(dim=1)]
    pending: list[tuple[Tensor, Tensor]] = []
    steps: list[tuple[Tensor, ...]] = []
    gone = gone.clone()
    g, phi = state.score(gone)
    tie = 4 * torch.finfo(g.dtype).eps * g.amax(dim=1, keepdim=True)
    patience = 1 if g.device.type == "cpu" else 16  # steps between looks at `until`: a look waits for the device

    for t in range(keep):
        s, best = state.pick(g, tie)
        order.append(s)
        scores.append(best)
        if trace:
            steps.append((g, phi * (gone + 1), state.energy.clone(), state.query_energy.clamp_min(0)))
        pending.append((s, g))
        gone.scatter_(1, s, -1)
        if t in updates:
            for pick in pending if state.rule.feedback == "all" else pending[-1:]:
                state.feed_back(*pick)
            pending = []
            g, phi = state.score(gone)
        else:
            g = g.scatter(1, s, -1)
        left.append(state.energy.sum(dim=1))
        if until is not None and t % patience == 0 and bool((left[-1] <= (1 - until) * left[0]).all()):
            break
    traces = _traces(steps, (state.energy, state.query_energy)) if trace else None
    return Picks(torch.cat(order, dim=1), torch.cat(scores, dim=1), torch.stack(left, dim=1), traces)


def _traces(steps: list[tuple[Tensor, ...]], end: tuple[Tensor, Tensor]) -> list[Trace]:
    g, phi, energy, query = (torch.stack(rows, dim=1) for rows in zip(*steps, strict=True))
    energy = torch.cat([energy, end[0][:, None]], dim=1)
    query = torch.cat([query, end[1][:, None]], dim=1)
    return [Trace(*fields) for fields in zip(g, phi, energy, query, strict=True)]
