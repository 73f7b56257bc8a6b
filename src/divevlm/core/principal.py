"""PruneSID's maths: groups of tokens by principal components, suppression within them, places for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def principal_groups(x: Tensor, components: int) -> tuple[Tensor, Tensor]:
    """[N] the component each row loads on most, and [N, components] the absolute loadings. x: [N, d]

    Rows pass a sigmoid and are centred over their channels; the components are the leading eigenvectors of the N x N
    Gram matrix, exactly (the original draws a random sketch; in float64, since float32 mixes neighbours), and without sign.
    """
    rows = torch.sigmoid(x.double())
    rows = rows - rows.mean(dim=1, keepdim=True)
    vectors = torch.linalg.eigh(rows @ rows.T).eigenvectors
    loading = vectors.flip(1)[:, :components].abs().float()
    return loading.argmax(dim=1), loading


def suppressed(cosine: Tensor, group: Tensor, importance: Tensor, threshold: float) -> Tensor:
    """[N] bool: tokens that a more important survivor of their own group is too similar to (greedy NMS, all groups at once).

    cosine: [N, N], group: [N], importance: [N], ties to the lower index.
    """
    rank = torch.empty_like(group)
    rank[importance.sort(descending=True, stable=True).indices] = torch.arange(len(group), device=group.device)
    before = (rank < rank[:, None]) & (group == group[:, None]) & (cosine > threshold)  # [i, j]: j may suppress i
    gone = torch.zeros_like(before[0])
    open_ = torch.ones_like(gone)
    while bool(open_.any()):  # a round settles at least the most important open token of each group
        survives = open_ & ~(before & open_).any(dim=1)
        gone |= open_ & (before & survives).any(dim=1)
        open_ &= ~survives & ~gone
    return gone


def group_places(survivors: Sequence[int], sizes: Sequence[int], keep: int, reserved: int = 0) -> list[int]:
    """How many tokens each group keeps, `keep - reserved` in all (1 is reserved for CLS).

    One each, the others in proportion to the survivors (rounded half to even), below a ceiling that rises until `keep` fit;
    what a ceiling cuts off goes to the groups with the most survivors.
    """
    order = sorted(range(len(sizes)), key=lambda g: (-survivors[g], g))
    lower = [min(1, n) for n in sizes]
    if sum(lower) > keep - reserved:  # more groups than places
        first = set(order[: keep - reserved])
        return [int(g in first) for g in range(len(sizes))]
    upper = [min(5 * math.ceil(keep / 64), n, u) for n, u in zip(sizes, survivors, strict=True)]
    while sum(upper) < min(keep, sum(sizes)):
        upper = [min(b + 1, n) for b, n in zip(upper, sizes, strict=True)]
    spare = keep - reserved - sum(lower)
    places, seen, given = [], 0, 0
    for low, high, u in zip(lower, upper, survivors, strict=True):
        seen += u
        share = round(spare * seen / max(1, sum(survivors)))
        places.append(min(low + share - given, high))
        given = share
    for g in order:
        places[g] += min(max(0, keep - reserved - sum(places)), upper[g] - places[g])
    return places
