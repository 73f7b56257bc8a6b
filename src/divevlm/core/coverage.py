"""Greedy maximum coverage (facility location): MMTok's and SCOPE's loop."""

from __future__ import annotations

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.top import best

BLOCK = 32  # candidates that are scored again together


def greedy_coverage(cover: Tensor, keep: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Pick columns so that sum_r max_{j picked} cover[r, j] grows fastest; levels start at 0.

    Each step picks the largest weight_j * sum_r max(cover[r, j] - level_r, 0). cover: [R, N], weight: [N], not negative.
    -> [keep] picks in order, [keep] their scores.

    Scores can only fall as levels rise, so those of before are bounds: only columns whose bound reaches the best score are
    scored again ("lazy" greedy; the picks are the same).
    """
    columns = cover.T.contiguous()  # [N, R]
    n = len(columns)
    factor = columns.new_ones(n) if weight is None else weight.to(columns.dtype)
    level = columns.new_zeros(columns.shape[1])

    def score(some: Tensor) -> Tensor:
        return (columns[some] - level).clamp_min_(0).sum(dim=1) * factor[some]

    bound = torch.cat([score(some) for some in torch.arange(n, device=cover.device).split(16 * BLOCK)])
    require(bool(bound.isfinite().all()), "cover", "inf or nan", "finite")
    order: list[int] = []
    scores: list[Tensor] = []
    while len(order) < keep:
        stale = bound.clone()
        fresh = torch.zeros_like(bound)  # the scores that hold now, as far as they are known
        highest = 0.0
        while True:
            top = stale.topk(min(BLOCK, n))
            if float(top.values[0]) <= 0 or float(top.values[0]) < highest:
                break
            some = top.indices[top.values >= highest]
            bound[some] = fresh[some] = score(some)
            stale[some] = -torch.inf
            highest = float(fresh.max())
        if highest <= 0:  # nothing is left to gain: the rest in input order
            rest = torch.ones(n, dtype=torch.bool)
            rest[order] = False
            order += rest.nonzero()[: keep - len(order), 0].tolist()
            scores += [columns.new_zeros(())] * (keep - len(scores))
            break
        pick = best(fresh)
        order.append(pick)
        scores.append(fresh[pick])
        bound[pick] = -torch.inf
        level = torch.maximum(level, columns[pick])
    return torch.tensor(order, device=cover.device), torch.stack(scores)
