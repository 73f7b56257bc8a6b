"""Bins of neighbouring tokens: a grid cut into exactly K rectangles, as even as whole rows and columns allow."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def grid_bins(rows: int, columns: int, keep: int) -> Tensor:
    """[rows * columns] the bin of each cell in reading order; bins are numbered in reading order and none is empty.

    The rows are cut into bands so that bins come out as square as can be, and each band into its share of `keep`.
    """
    keep = min(keep, rows * columns)
    bands = min(max(math.floor(math.sqrt(keep * rows / columns) + 0.5), -(-keep // columns)), rows, keep)
    edge = torch.arange(bands + 1) * keep // bands  # bins before each band
    band = torch.arange(rows) * bands // rows
    inside = (edge[1:] - edge[:-1])[band]  # bins side by side in each row
    return (edge[band, None] + torch.arange(columns) * inside[:, None] // columns).flatten()


def sequence_bins(n: int, keep: int) -> Tensor:
    """[n] the same for a mere sequence: K runs of nearly equal length."""
    return torch.arange(n) * min(keep, n) // n


def bin_centres(bin_of: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """[bins] the cell nearest to the middle of each bin (ties to the earlier one). All three: [n]."""
    count = int(bin_of.max()) + 1
    sizes = torch.bincount(bin_of, minlength=count).double()

    def squared_offset(at: Tensor) -> Tensor:
        middle = torch.zeros(count, dtype=torch.double).index_add_(0, bin_of, at.double()) / sizes
        return (at - middle[bin_of]).square()

    far = squared_offset(rows) + squared_offset(columns)
    by_distance = far.sort(stable=True).indices
    by_bin = bin_of[by_distance].sort(stable=True).indices
    first = torch.cat([torch.zeros(1, dtype=torch.long), sizes.long().cumsum(0)[:-1]])
    return by_distance[by_bin][first]
