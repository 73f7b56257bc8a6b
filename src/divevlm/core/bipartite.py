"""Bipartite soft matching and merging of tokens (ToMe, Bolya et al., ICLR 2023; written from the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divevlm.core.top import top_k, unit


@dataclass(frozen=True)
class Matching:
    """Tokens at even places may join one at an odd place. `left`: [a - r] even tokens that stay; `source`: [r] those that
    join, `target`: [r] whom; `odd`: [b]. All index the tokens."""

    left: Tensor
    source: Tensor
    target: Tensor
    odd: Tensor

    @property
    def stay(self) -> Tensor:
        """The tokens that are left, in the order of the merged rows."""
        return torch.cat([self.left, self.odd])


def best_matches(metric: Tensor, protected: int = 0) -> tuple[Tensor, Tensor]:
    """[a] the best cosine of each even token to an odd one, and [a] which odd one (0 = the first of them).

    metric: [N, d], N >= 2. The first `protected` tokens take no part: as even ones they score -inf.
    """
    rows = unit(metric)
    index = torch.arange(len(rows), device=metric.device)
    cosine = (rows[::2] @ rows[1::2].T).masked_fill(index[1::2] < protected, -torch.inf)
    score, partner = cosine.max(dim=1)
    return score.masked_fill(index[::2] < protected, -torch.inf), partner


def match(metric: Tensor, r: int, protected: int = 0) -> Matching:
    """The r even tokens most similar to an odd one join it; at most half of those that are not protected.

    Ties go to the lower index, on both sides.
    """
    index = torch.arange(len(metric), device=metric.device)
    even, odd = index[::2], index[1::2]
    r = max(0, min(r, (len(metric) - protected) // 2))
    if not r:
        return Matching(even, even[:0], even[:0], odd)
    score, partner = best_matches(metric, protected)
    order = top_k(score, len(even))
    source = order[:r].sort().values
    return Matching(even[order[r:].sort().values], even[source], odd[partner[source]], odd)


def merged(x: Tensor, sizes: Tensor, matching: Matching) -> tuple[Tensor, Tensor]:
    """Size-weighted means: the even tokens that stay, then the odd ones. x: [N, d], sizes: [N] tokens that each stands for.

    Both sum(size x) and sum(size) are what they were.
    """
    weight = sizes.to(torch.promote_types(x.dtype, torch.float32))
    total = (x.to(weight.dtype) * weight[:, None]).index_add(
        0, matching.target, x[matching.source].to(weight.dtype) * weight[matching.source, None]
    )
    size = weight.index_add(0, matching.target, weight[matching.source])
    return (total / size[:, None])[matching.stay].to(x.dtype), size[matching.stay]


def schedule(tokens: int, keep: int, blocks: int) -> list[int]:
    """How many tokens each block merges away, as evenly as can be, the larger numbers first: 576 -> 64 in 23 blocks is
    six times 23 and seventeen times 22. A block merges half of them at most: few blocks merge more in the first ones, and may
    leave more than `keep`."""
    plan = []
    for left in range(blocks, 0, -1):
        even, needed = -((keep - tokens) // left), tokens - keep * 2 ** (left - 1)
        plan.append(max(0, min(max(even, needed), tokens // 2)))
        tokens -= plan[-1]
    return plan
