"""Is a sequence of picks right, as far as float32 can tell?

Replays the picks on the float64 residual form. At every step the picked token must score as high as the best one, less
what rounding may have done: an inner product of unit rows is known to DELTA after the updates, so a score exp(lam phi) e
is known to exp(lam) DELTA (1 + lam / R), with R the largest pooled alignment (phi = r / R). Where two scores are closer
than that, both orders are right; where they are not, the picks must be those of Algorithm 1. All of it in units of exp(|lam|).
"""

import math

import torch

from divevlm.core.reference import Residuals, log_score
from divevlm.core.rule import EPS, Rule

DELTA = {torch.float32: 2e-6, torch.float64: 2e-14}


def assert_right(x, q, selection, rule=None, *, dtype=torch.float32):
    rule = rule or Rule()
    state = Residuals(x.double(), q.double(), rule)
    keep = len(selection)
    updates = rule.update_steps(keep)
    candidates = torch.ones(x.shape[0], dtype=torch.bool)
    pending, norms = [], state.norms()
    g = scores(state, norms, candidates, rule)
    order = selection.order.tolist()
    assert len(set(order)) == keep
    for t, s in enumerate(order):
        tolerance = tolerance_of(state, norms, candidates, rule, dtype)
        best = float(g[candidates].max())
        assert candidates[s], f"step {t}: token {s} can't be picked twice"
        assert float(g[s]) >= best - tolerance, (
            f"step {t}: {s} scores {g[s]:.9f}, best {best:.9f}, known to {tolerance:.1e}"
        )
        reported = float(selection.scores[t])
        if (
            reported < 0.99 * torch.finfo(dtype).max
        ):  # where a score stands at the dtype's largest number it says no more
            assert abs(reported * math.exp(-abs(rule.lam)) - best) <= 2 * tolerance
        candidates[s] = False
        pending.append(s)
        if t in updates:
            for p in pending if rule.feedback == "all" else pending[-1:]:
                state.feed_back(p)
            pending, norms = [], state.norms()
            if candidates.any():
                g = scores(state, norms, candidates, rule)


def scores(state, norms, candidates, rule):
    """g in units of exp(|lam|)"""
    return (log_score(state.cross, norms, candidates, rule)[0] - abs(rule.lam)).exp()


def tolerance_of(state, norms, candidates, rule, dtype):
    if not len(state.q) or rule.lam == 0:
        return DELTA[dtype]
    alpha = (state.cross / norms.clamp_min(EPS)).clamp_min(0)[:, candidates]
    h = min(rule.top_h, len(state.q))
    highest = float((alpha.topk(h, dim=0).values.sum(0) / h).max())
    # A score of the prompt weight alone has no energy in it to damp the rounding of a short residual's direction.
    short = 1.0 if rule.score == "fused" else 1 / max(float(norms[candidates].min()), 1e-3)
    return DELTA[dtype] * (1 + abs(rule.lam) * short / max(highest, 1e-3))


def states(kind, n, d, m, seed=0):
    """Inputs of a kind. Real visual states are like `clustered`: a common direction, groups of near-duplicates."""
    gen = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.randn(*shape, generator=gen)  # noqa: E731
    q = rand(m, d)
    if kind == "random":
        return rand(n, d), q
    if kind == "clustered":
        centres = rand(max(2, n // 12), d) + 2 * rand(d)
        x = centres[torch.randint(len(centres), (n,), generator=gen)] + 0.3 * rand(n, d)
        return x, q + centres[:1]
    if kind == "identical":
        return rand(1, d).expand(n, d).clone(), q
    if kind == "duplicates":
        return rand(max(2, n // 5), d).repeat(6, 1)[:n], q
    if kind == "zeros":
        x = rand(n, d)
        x[::3] = 0
        return x, q
    if kind == "low-rank":
        return rand(n, 3) @ rand(3, d), q
    if kind == "opposed":
        half = rand((n + 1) // 2, d)
        return torch.cat([half, -half])[:n], q
    raise AssertionError(kind)


KINDS = ("random", "clustered", "identical", "duplicates", "zeros", "low-rank", "opposed")
