"""DIVE's loop in torch operations: any device, batches, 20 operations a pick, no wait for the device, fixed shapes.

Everything a pick reads lies in one buffer whose rows are vectors over the columns [text | visual], so that one gather gets
all of it, the column of the picked token. Its rows, in this order (names as in `core/gram.py`):

    pairs     2K + 1  (a, -m) of each update, the newest first; the row above the newest is scratch
    states    d       X^T, if columns of G are computed as they are picked: [pairs; states] times the gathered column is
                      the column of G, now
    inverse   1       1 / |x_i|, 0 without energy
    cross     M + h   C = Q X^T, and h rows of zeros, so that the h largest entries of a column are never negative
    gram      N       G itself, if it is computed at once: the gathered column less the pairs is the column of G, now

`marks` holds what a score needs of each token in three rows: h eps (-inf once picked), e + tie (inf once picked), and e.
A picked token's score is then -inf, and what is compared to the best is inf - inf: false, also when nothing is left anywhere
and the best is -inf.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from divevlm.core.gram import Loop, Picks, Problem, from_log
from divevlm.core.products import fill_gram


class Eager(Loop):
    def __init__(self, problem: Problem, way: Literal["gram", "picked"]) -> None:
        self.way = way
        rule, keep = problem.rule, problem.keep
        b, n, d = problem.x.shape
        device, new = problem.x.device, problem.energy.new_empty
        self.h = min(rule.top_h, problem.cross.shape[1])
        self.texts = problem.cross.shape[1] + self.h  # with the rows of zeros
        self.updates = 0  # so far
        self.inverted = (
            self.scored
        ) = -1  # updates that the inverses know of, and the pick that the latest scores are for
        self.updates_before: list[int] = []  # each pick

        lengths = {"pairs": 2 * keep + 1, "states": d if way == "picked" else 0, "inverse": 1, "cross": self.texts}
        lengths["gram"] = n if way == "gram" else 0
        ends = dict(zip(lengths, accumulate(lengths.values()), strict=True))
        self.end = ends["gram"]
        self.buffer = new(b, self.end, self.texts + n)
        visual = {
            name: self.buffer[:, ends[name] - length : ends[name], self.texts :] for name, length in lengths.items()
        }
        self.inverse, self.cross = visual["inverse"][:, 0], visual["cross"]
        self.start = visual["gram" if way == "gram" else "states"]
        # The gathered column; its last part, p and the column of G, goes on where that is computed ("picked").
        self.column = new(b, 1, self.end + (n if way == "picked" else 0))
        self.products = self.column[..., ends["inverse"] :][..., : self.texts + n]
        self.pivot = self.column[..., ends["states"] : ends["inverse"]]
        self.factors_end = ends["states"]
        index = torch.arange(self.end)
        pairs = index[1 : ends["pairs"]]
        pairs[:] = pairs.view(-1, 2).flip(1).flatten()  # m of s meets a, a of s meets m
        self.rows = index.to(device)[None]
        self.sample = torch.arange(b, device=device)[:, None]

        self.marks = new(b, 3, n)
        eta = rule.eta
        constant = partial(torch.tensor, dtype=problem.energy.dtype, device=device)
        self.low, self.high = constant([[[-1.0], [-1.0 if rule.two_sided else 0.0]]]), constant([[[1.0], [1.0]]])
        self.pair = constant([[[-1, eta / 2], [0, eta], [-1, eta / 2]]]).expand(b, 3, 2)  # (z, z+) -> (-m, a, -m)
        self.gone = constant([[[-torch.inf], [torch.inf]]]).expand(b, 2, 1)
        self.never = constant([[[torch.nan], [-torch.inf]]]).expand(b, 2, 1)  # the scores that come of these marks
        self.lead = constant([[[problem.tie], [0.0]]])
        self.order = torch.empty(b, keep, dtype=torch.long, device=device)
        self.best, self.top = new(b, keep), new(b, keep)
        self.weight = None if problem.weight is None else new(b, n)
        self.load(problem)

    def restart(self, problem: Problem) -> None:
        self.updates, self.updates_before = 0, []
        self.load(problem)

    def load(self, problem: Problem) -> None:
        """Start values, into buffers that stay where they are."""
        self.problem = problem
        self.cross.zero_()[:, : problem.cross.shape[1]] = problem.cross
        self.marks[:, 0] = problem.soft if problem.logs else 0
        self.marks[:, 1], self.marks[:, 2] = problem.energy + problem.tie, problem.energy
        torch.threshold_(self.marks[:, 1:], problem.floor, 0)
        self.start_energy = self.marks[:, 2].clone()
        if problem.padding is not None:
            self.marks[:, 0].masked_fill_(problem.padding, -torch.inf)
            self.marks[:, 1].masked_fill_(problem.padding, torch.inf)
        if self.weight is not None and problem.weight is not None:
            self.weight.copy_(problem.weight)
        for to, x, scale in zip(self.start, problem.x, problem.scale, strict=True):
            if self.way == "gram":
                fill_gram(to, x, scale)
            else:
                torch.mul(x.mT, scale, out=to)

    def score(self, t: int) -> None:
        self._invert()
        self.latest, self.scored = self._scores(t), t

    def _invert(self) -> None:
        torch.rsqrt(self.marks[:, 2], out=self.inverse)
        self.inverse.nan_to_num_(posinf=0)
        self.inverted = self.updates

    def pick(self, t: int) -> Tensor:
        if self.scored != t:  # the scores stay as they are, but for the token that was picked
            self.latest.scatter_(2, self.order[:, None, t - 1 : t].expand(-1, 2, 1), self.never)
            self.top[:, t] = self.top[:, self.scored]
        best = torch.amax(self.latest[:, 1], dim=1, keepdim=True, out=self.best[:, t : t + 1])
        reached = self.latest[:, 0] >= best
        s = torch.argmax(reached.view(torch.uint8), dim=1, keepdim=True, out=self.order[:, t : t + 1])
        self.updates_before.append(self.updates)
        self.marks[:, :2].scatter_(2, s[:, None].expand(-1, 2, 1), self.gone)
        return s

    def _scores(self, t: int) -> Tensor:
        """[B, 2, N]: with a tie's energy more, and as they are."""
        problem, lam, marks = self.problem, self.problem.rule.lam, self.marks
        if not problem.logs:
            if self.weight is None:
                return marks[:, 1:] + marks[:, :1]
            return torch.addcmul(marks[:, :1], marks[:, 1:], self.weight[:, None])
        pooled = self.cross.topk(self.h, dim=1, sorted=False).values.sum(dim=1)
        r = torch.addcmul(marks[:, 0], pooled, self.inverse)
        top = torch.amax(r, dim=1, keepdim=True, out=self.top[:, t : t + 1])
        base = marks[:, 1:].log() if problem.rule.score == "fused" else self.lead
        if lam > 0:
            return torch.addcdiv(base, r[:, None], top[:, None], value=lam)
        # The sign of lam would turn -inf, the mark of a pick, around: out with it, and in again behind the product.
        return torch.addcdiv(base, r.clamp_min_(0)[:, None], top[:, None], value=lam).add_(marks[:, :1])

    def feed_back(self, s: object) -> None:
        assert isinstance(s, Tensor)
        if self.inverted != self.updates:  # several picks are fed back at once
            self._invert()
        newest = 2 * (self.problem.keep - self.updates) + 1  # row of the newest pair; those before are free
        indices = [self.sample, self.rows[:, newest:], s]
        torch.ops.aten.index.Tensor_out(
            self.buffer[..., self.texts :], indices, out=self.column[:, 0, newest : self.end]
        )
        factors = self.column[..., newest : self.factors_end]
        moved = self.buffer[:, newest : self.factors_end, self.texts :]
        if self.way == "picked":
            torch.bmm(factors, moved, out=self.products[..., self.texts :])
        elif self.updates:
            self.products[..., self.texts :].baddbmm_(factors, moved)
        z = torch.clamp(self.products * self.pivot, self.low, self.high)  # (b, b+), and (p, p+)
        pair = torch.bmm(self.pair, z, out=self.buffer[:, newest - 3 : newest])  # (-m, a, -m), and (-v, w, -v)
        if self.texts:
            self.cross.baddbmm_(pair[:, :2, : self.texts].mT, pair[:, 1:, self.texts :])
        self.marks[:, 1:].addcmul_(pair[:, 1:2, self.texts :], pair[:, 2:, self.texts :], value=2)
        torch.threshold_(self.marks[:, 1:], self.problem.floor, 0)
        self.updates += 1

    def _removed(self, columns: slice) -> Tensor:
        """[B, updates, columns] a of each update, the newest first. It took (2 / eta - 1) a^2 = 2 m a of an energy."""
        keep = self.problem.keep
        return self.buffer[:, 1 : 2 * keep : 2, columns][:, keep - self.updates :]

    def energies(self) -> tuple[Tensor, Tensor]:
        query = self.problem.query_energy
        if self.texts:
            squares = self._removed(slice(query.shape[1])).square().sum(dim=1)
            query = query.sub(squares, alpha=2 / self.problem.rule.eta - 1).clamp_min_(0)
        return self.marks[:, 2].clone(), query

    def closed(self) -> Tensor:
        return self.marks[:, 0] == -torch.inf

    def scores(self) -> tuple[Tensor, Tensor]:
        phi = torch.zeros_like(self.inverse)
        if self.texts:
            phi = self.cross.topk(self.h, dim=1).values.sum(dim=1) * self.inverse.masked_fill(self.closed(), 0)
            phi.div_(phi.amax(dim=1, keepdim=True) + self.problem.soft)
        log = phi * self.problem.rule.lam if self.problem.weight is None else self.problem.weight.log()
        return from_log(log + self.marks[:, 2].log() if self.problem.rule.score == "fused" else log), phi

    def picks(self, count: int) -> Picks:
        problem, scores = self.problem, self.best[:, :count]
        if problem.logs:  # so far with h eps on top of each alignment
            lam = problem.rule.lam
            extra = lam * problem.soft / self.top[:, :count] + (problem.soft if lam < 0 else 0)
            scores = from_log(scores - extra)
        start = self.start_energy.sum(dim=1, keepdim=True)
        taken = torch.linalg.vector_norm(self._removed(slice(self.texts, None)), dim=2).square_()
        left = torch.cat([start, start - (2 / problem.rule.eta - 1) * taken.flip(1).cumsum(dim=1)], dim=1).clamp_min_(0)
        steps = torch.tensor([*self.updates_before, self.updates], device=left.device)
        return Picks(self.order[:, :count], scores, left[:, steps])
