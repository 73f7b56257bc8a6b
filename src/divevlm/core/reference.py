"""DIVE as the paper prints it (Algorithm 1, Appendix A): residual matrices, one sample, no tricks.

Slow and readable: the oracle for every fast path. Use float64 to compare picks. Its cost is the paper's too,
O(M N d + K ((N + M) d + M N)): residuals are rewritten at every step, the cross-similarities are maintained.
"""

from __future__ import annotations

import torch
from torch import Tensor

from divevlm.core.rule import EPS, Rule
from divevlm.core.selection import Selection, Trace


def alignment(cross: Tensor, norms: Tensor, candidates: Tensor, top_h: int) -> Tensor:
    """phi (Eqs. 6 and 7): mean of the h largest positive candidate-normalised alignments, rescaled over the candidates.

    cross: [M, N] inner products of prompt and visual residuals, norms: [N], candidates: [N] bool -> [N]
    """
    if cross.shape[0] == 0:
        return torch.zeros_like(norms)
    alpha = (cross / norms.clamp_min(EPS)).clamp_min(0)
    h = min(top_h, cross.shape[0])
    r = alpha.topk(h, dim=0).values.sum(dim=0) / h
    return r / (r[candidates].max() + EPS)


def log_score(
    cross: Tensor, norms: Tensor, candidates: Tensor, rule: Rule, more: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """log g (Eq. 1), phi, and log g with `more` energy, of every token. No lam overflows a logarithm."""
    phi = alignment(cross, norms, candidates, rule.top_h)
    if rule.score == "prompt":
        return rule.lam * phi, phi, rule.lam * phi + more
    energy = norms.where(norms > EPS, 0) ** 2
    return rule.lam * phi + energy.log(), phi, rule.lam * phi + (energy + more).log()


class Residuals:
    """The working states X and Q of one sample, and Q X^T."""

    def __init__(self, x: Tensor, q: Tensor, rule: Rule) -> None:
        norms = x.norm(dim=-1, keepdim=True)  # unit rows, or (not normalised) rows in units of the longest
        self.x = x / (norms if rule.normalize else norms.max()).clamp_min(EPS)
        self.q = q / q.norm(dim=-1, keepdim=True).clamp_min(EPS)
        self.cross = self.q @ self.x.T
        self.rule = rule

    def norms(self) -> Tensor:
        return _energy(self.x).sqrt()

    def feed_back(self, s: int) -> None:
        """Eqs. 2 and 3: discount what pick s explains in every visual and prompt residual."""
        norm = self.x[s].norm()
        if norm <= EPS:
            return
        u = self.x[s] / norm
        b, p = self.x @ u, self.q @ u
        a, w = (self.rule.eta * (v if self.rule.two_sided else v.clamp_min(0)) for v in (b, p))
        self.x = self.x - torch.outer(a, u)
        self.q = self.q - torch.outer(w, u)
        self.cross = self.cross - torch.outer(w, b - a) - torch.outer(p, a)  # the inner products of the two lines above


def reference_select(
    x: Tensor,
    q: Tensor,
    keep: int,
    rule: Rule | None = None,
    *,
    dtype: torch.dtype | None = None,
    trace: bool = False,
    residuals: type[Residuals] = Residuals,
) -> Selection:
    """Algorithm 1. x: [N, d], q: [M, d]. dtype: working precision, at least float32. residuals: who keeps the states."""
    rule = rule or Rule()
    dtype = dtype or torch.promote_types(x.dtype, torch.float32)
    state = residuals(x.to(dtype), q.to(dtype), rule)
    n, keep = x.shape[0], min(keep, x.shape[0])
    updates = rule.update_steps(keep)

    candidates = torch.ones(n, dtype=torch.bool, device=x.device)
    order: list[int] = []
    pending: list[int] = []  # picks that no update has applied yet
    picked_scores, steps = [], []
    norms = state.norms()
    left = [(norms**2).sum()]
    tie = 4 * torch.finfo(dtype).eps  # energies that the precision can't tell apart are equal
    g, phi, upper = log_score(state.cross, norms, candidates, rule, tie)

    for t in range(keep):
        if trace:
            steps.append(
                (g.exp().masked_fill(~candidates, -1), phi.masked_fill(~candidates, 0), norms**2, _energy(state.q))
            )
        if norms[candidates].max() <= EPS:  # nothing is left to explain: fill in input order
            s = int(candidates.nonzero()[0])
        else:  # of those that reach the best score, the lowest index
            s = int((candidates & (upper >= g[candidates].max())).nonzero()[0])
        order.append(s)
        picked_scores.append(g[s].exp())
        candidates[s] = False
        pending.append(s)

        if t in updates:
            for p in pending if rule.feedback == "all" else pending[-1:]:
                state.feed_back(p)
            pending = []
            norms = state.norms()
            if t < n - 1:
                g, phi, upper = log_score(state.cross, norms, candidates, rule, tie)
        left.append((norms**2).sum())

    full = None
    if trace:
        scores, phis, energy, query = (torch.stack(rows) for rows in zip(*steps, strict=True))
        end = torch.cat([energy, (norms**2)[None]]), torch.cat([query, _energy(state.q)[None]])
        full = Trace(scores, phis, *end)
    return Selection(torch.tensor(order, device=x.device), torch.stack(picked_scores), torch.stack(left), full)


def _energy(z: Tensor) -> Tensor:
    return z.square().sum(dim=-1)
