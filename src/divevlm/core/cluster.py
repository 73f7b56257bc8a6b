"""Clusters of tokens: by density peaks (DPC-kNN, as in SparseVLM), or by the nearest kept token."""

from __future__ import annotations

import math

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


def merged_sizes(states: Tensor, kept: Tensor, sizes: Tensor) -> Tensor:
    """[K] how many tokens each kept one stands for, once every other has joined the most similar (cosine; ties: lower index).

    states: [n, d], kept: [K] indices, sizes: [n] how many each token stands for so far
    """
    rows = unit(states)
    joins = (rows @ rows[kept].T).argmax(dim=1)
    joins[kept] = torch.arange(len(kept), device=kept.device)
    return sizes.new_zeros(len(kept)).index_add_(0, joins, sizes)
