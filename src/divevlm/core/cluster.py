"""Clusters of tokens: by density peaks (DPC-kNN: SparseVLM), or around targets (VisionZip: evenly spaced ones; kept tokens)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from divevlm.core.top import top_k, unit


def density_peaks(x: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """[clusters] centres, best first, and [N] the cluster of each row. x: [N, d]

    A centre is dense (its nearest rows are near) and far from anything denser. Of equally dense rows the lower index counts
    as denser, so nothing is left to chance.
    """
    distance = distances(x) / math.sqrt(x.shape[1])
    near = distance.topk(clusters, dim=1, largest=False).values  # the row itself is one of them
    density = torch.exp(-near.square().mean(dim=1))
    index = torch.arange(len(x), device=x.device)
    denser = (density > density[:, None]) | ((density == density[:, None]) & (index < index[:, None]))
    apart = distance.masked_fill(~denser, torch.inf).amin(dim=1)
    apart = torch.where(apart.isinf(), distance.max(), apart)
    centres = top_k(density * apart, clusters)
    cluster = distance[:, centres].argmin(dim=1)
    cluster[centres] = torch.arange(clusters, device=x.device)
    return centres, cluster


def distances(x: Tensor) -> Tensor:
    """[N, N] between the rows of x: [N, d], by one product in float64; symmetric, and equal rows are exactly 0 apart."""
    rows = x.double()
    rows = rows - rows.mean(dim=0)
    product = rows @ rows.T
    product = product.triu() + product.triu(1).T  # the two halves may differ in the last bit
    size = product.diagonal()
    both = size[:, None] + size
    square = (both - 2 * product).clamp_min_(0)
    return square.masked_fill_(square <= 1e-13 * both, 0).sqrt_()


def means(x: Tensor, cluster: Tensor, clusters: int) -> Tensor:
    """[clusters, d] mean row of each cluster, none of which is empty. x: [N, d], cluster: [N]"""
    rows = x.to(torch.promote_types(x.dtype, torch.float32))
    total = rows.new_zeros(clusters, rows.shape[1]).index_add_(0, cluster, rows)
    return total / torch.bincount(cluster, minlength=clusters)[:, None]


def nearest_target(states: Tensor, targets: Tensor) -> Tensor:
    """[n] which target each token joins, by cosine (ties: lower index); a target joins itself. states: [n, d], targets: [C]"""
    rows = unit(states)
    joined = (rows @ rows[targets].T).argmax(dim=1)
    joined[targets] = torch.arange(len(targets), device=states.device)
    return joined


def merged_sizes(states: Tensor, kept: Tensor, sizes: Tensor) -> Tensor:
    """[K] how many tokens each kept one stands for, once every other has joined the most similar of them.

    states: [n, d], kept: [K] indices, sizes: [n] how many each token stands for so far
    """
    return sizes.new_zeros(len(kept)).index_add_(0, nearest_target(states, kept), sizes)


def row_sizes(states: Tensor, rows: Tensor, members: Sequence[Sequence[int]], sizes: Tensor) -> Tensor:
    """[r] the same for rows that a method made: each stands for its members (without any, for itself), and a token that is
    in none joins the most similar of them.

    states: [n, d], rows: [r, d], members: of each row, sizes: [n] how many each token stands for so far
    """
    now = torch.stack([sizes[list(tokens)].sum() for tokens in members]).clamp_min(1)
    alone = torch.ones(len(states), dtype=torch.bool, device=states.device)
    alone[[token for tokens in members for token in tokens]] = False
    return now.index_add_(0, (unit(states[alone]) @ unit(rows).T).argmax(dim=1), sizes[alone])


def measured_sizes(states: Tensor, kept: Tensor, sizes: Tensor, shares: Tensor) -> Tensor:
    """[K] the same, by how much they are looked at: a kept token that stands for n has what its whole group had. None stands
    for more than there are.

    shares: [n] of attention, with the present sizes
    """
    total = shares.new_zeros(len(kept)).index_add_(0, nearest_target(states, kept), shares)
    ratio = torch.where(total > 0, total / shares[kept].clamp_min(torch.finfo(shares.dtype).tiny), 1.0)
    return (sizes[kept] * ratio).clamp_max(float(sizes.sum()))


def target_places(rest: int, contextual: int) -> Tensor:
    """[contextual] evenly spaced places among `rest` tokens: 0, step, 2 step, ... with step = rest // contextual."""
    step = max(1, rest // max(1, contextual))
    return torch.arange(0, rest, step)[:contextual]


def contextual_rows(x: Tensor, targets: Tensor, joined: Tensor, merge: Literal["add", "mean"] = "add") -> Tensor:
    """[C, d]: "add" the mean of those who joined to the target, as the original does (about twice as long), or the "mean"
    of all of them. x: [R, d], targets: [C], joined: [R]
    """
    if merge == "mean":
        return means(x, joined, len(targets))
    own = x[targets].to(torch.promote_types(x.dtype, torch.float32))
    total = own.new_zeros(own.shape).index_add_(0, joined, x.to(own.dtype))
    count = torch.bincount(joined, minlength=len(targets))[:, None]
    return own + (total - own) / (count - 1).clamp_min(1)
