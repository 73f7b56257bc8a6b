"""DIVE in Gram space: the residual form's picks without residual matrices.

Scores use inner products only, and those have a closed update. With unit direction u of the pick, b = X u, p = Q u,
a = eta max(b, 0), w = eta max(p, 0) and the midpoints m = b - a/2, v = p - w/2:

    |x_i|^2 <- |x_i|^2 - 2 m_i a_i        Q X^T <- Q X^T - w m^T - v a^T        X X^T <- X X^T - m a^T - a m^T

Of G = X X^T only the column of the next pick is needed: its start value less what the stored (m, a) pairs took away. The width
d appears in the start products alone. Every loop (eager, fused, kernel) is this rule in the names used here and in
docs/how-selection-works.md, and shares these guards:

- an energy that the precision can't tell from none is none (`floor`), and a pick without energy changes nothing;
- b and p lie in [-1, 1], as rows are no longer than 1: rounding can't grow;
- scores are compared as logarithms, log e + lam phi, which no lam overflows;
- a score reaches the best if it does so with `tie` more energy; of those that do, the lowest index is picked.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from divevlm.core.rule import EPS, Rule
from divevlm.core.selection import Trace


@dataclass(frozen=True)
class Problem:
    """A batch of start rows no longer than 1, by their inner products."""

    x: Tensor  # [B, N, d] the rows as given
    scale: Tensor  # [B, N] what makes them start rows
    energy: Tensor  # [B, N] e = |x|^2
    query_energy: Tensor  # [B, M]
    cross: Tensor  # [B, M, N] C = Q X^T; M = 0 where the prompt is not used
    pooled: Tensor  # [B, 1] h, the number of pooled prompt tokens
    padding: Tensor | None  # [B, N] bool
    weight: Tensor | None  # [B, N] fixed factors in place of exp(lam phi), the largest of them 1
    keep: int  # K
    rule: Rule

    @property
    def soft(self) -> Tensor:
        """[B, 1] h eps: alignments are summed over h, not averaged, so that Eq. 7's epsilon is h times as large."""
        return self.pooled * EPS

    @property
    def tie(self) -> float:
        return 4 * torch.finfo(self.energy.dtype).eps

    @property
    def floor(self) -> float:
        """Never less than the paper's epsilon allows."""
        return max(8 * torch.finfo(self.energy.dtype).eps, EPS**2)

    @property
    def logs(self) -> bool:
        """Are scores logarithms? Without an alignment they are energies."""
        return self.cross.shape[1] > 0 and self.rule.lam != 0


@dataclass(frozen=True)
class Picks:
    """The picks of a batch, `keep` for each sample."""

    order: Tensor  # [B, K]
    scores: Tensor  # [B, K] g
    left: Tensor  # [B, K + 1] visual energy that is left before each pick and after the last
    traces: list[Trace] | None = None


class Loop(ABC):
    """One way to carry out the rule. A pick `s` is whatever the loop makes it: an int, or [B, 1] on the device."""

    @abstractmethod
    def score(self, t: int) -> None:
        """Score every token by the present state, for the t-th pick."""

    @abstractmethod
    def pick(self, t: int) -> object:
        """The t-th pick, by the latest scores. It can't be picked again."""

    @abstractmethod
    def feed_back(self, s: object) -> None:
        """Take what pick s explains from every state."""

    @abstractmethod
    def picks(self, count: int) -> Picks:
        """What was picked in the first `count` steps."""

    @abstractmethod
    def energies(self) -> tuple[Tensor, Tensor]:
        """[B, N] visual and [B, M] prompt energies, now."""

    @abstractmethod
    def closed(self) -> Tensor:
        """[B, N] tokens that can't be picked, now."""

    @abstractmethod
    def scores(self) -> tuple[Tensor, Tensor]:
        """[B, N] g and phi of the latest scores, asked for before the next pick."""

    def all_picks(self) -> Picks | None:
        """The whole loop with an update after every pick, where it can be run in one go."""
        return None


def steps(loop: Loop, problem: Problem, observe: Callable[[bool], object] = lambda fresh: None) -> Iterator[int]:
    """The select - update - re-evaluate loop, pick by pick. observe: called before each pick, fresh = by new scores."""
    updates = problem.rule.update_steps(problem.keep)
    pending: list[object] = []
    for t in range(problem.keep):
        fresh = t == 0 or t - 1 in updates
        if fresh:
            loop.score(t)
        observe(fresh)
        pending.append(loop.pick(t))
        if t in updates:
            for s in pending if problem.rule.feedback == "all" else pending[-1:]:
                loop.feed_back(s)
            pending = []
        yield t


def run(loop: Loop, problem: Problem, *, trace: bool = False, until: float | None = None) -> Picks:
    """All picks. until: stop early, once that share of the energy is explained everywhere."""
    everywhere = problem.rule.updates is None or problem.rule.updates >= problem.keep
    if not trace and until is None and everywhere and (picks := loop.all_picks()) is not None:
        return picks
    every = 1 if problem.energy.device.type == "cpu" else 16  # picks between checks of `until`: a check waits
    start = problem.energy.sum(dim=1)
    states: list[tuple[Tensor, ...]] = []  # before each pick
    scores: list[Tensor] = []

    def observe(fresh: bool) -> None:
        if fresh:
            scores[:] = loop.scores()
        closed = loop.closed()
        states.append((scores[0].masked_fill(closed, -1), scores[1].masked_fill(closed, 0), *loop.energies()))

    for t in steps(loop, problem, observe) if trace else steps(loop, problem):
        if until is None or t % every:
            continue
        if bool((loop.energies()[0].sum(dim=1) <= (1 - until) * start).all()):
            break
    picks = loop.picks(t + 1)
    return replace(picks, traces=_traces(states, loop.energies())) if trace else picks


def _traces(states: list[tuple[Tensor, ...]], end: tuple[Tensor, Tensor]) -> list[Trace]:
    g, phi, energy, query = (torch.stack(rows, dim=1) for rows in zip(*states, strict=True))
    energy = torch.cat([energy, end[0][:, None]], dim=1)
    query = torch.cat([query, end[1][:, None]], dim=1)
    return [Trace(*fields) for fields in zip(g, phi, energy, query, strict=True)]


def from_log(log: Tensor) -> Tensor:
    """g from its logarithm; what the dtype can't hold stands at its largest number."""
    return log.clamp(max=math.log(torch.finfo(log.dtype).max) * (1 - 1e-6)).exp()
