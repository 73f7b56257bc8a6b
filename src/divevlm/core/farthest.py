"""Farthest-point sampling by cosine."""

from __future__ import annotations

import torch
from torch import Tensor

from divevlm.core.top import best, unit

SLACK = 1e-6  # cosines of float32 rows are not known better


def farthest_points(x: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """The row least like the mean direction first, then ever the row whose most similar pick is least similar to it.

    x: [N, d] -> [keep] picks in order, [keep] their distance 1 - cos to the nearest earlier pick (first: to the mean).
    """
    rows = unit(x)
    distance = 1 - rows @ unit(rows.mean(dim=0))
    order, scores = [], []
    for step in range(keep):
        pick = best(distance, SLACK)
        order.append(pick)
        scores.append(distance[pick])
        to_pick = 1 - rows @ rows[pick]
        distance = to_pick if step == 0 else torch.minimum(distance, to_pick)
        distance[order] = -torch.inf
    return torch.tensor(order, device=x.device), torch.stack(scores)
