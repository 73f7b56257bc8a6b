"""HiRED's maths: the share of the base view's first attention that lies in each tile, and the places it earns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def overlap(edges: Sequence[float], cells: int) -> Tensor:
    """[parts, cells] share of each cell that lies in each part. edges: parts + 1 numbers from 0 to 1, ascending."""
    bound = torch.tensor(edges, dtype=torch.double) * cells
    cell = torch.arange(cells, dtype=torch.double)
    return (torch.minimum(bound[1:, None], cell + 1) - torch.maximum(bound[:-1, None], cell)).clamp_min(0)


def region_sums(heat: Tensor, row_edges: Sequence[float], column_edges: Sequence[float]) -> Tensor:
    """[tile rows, tile columns] sum of the map inside each tile, cells on a border divided by area. heat: [h, w]"""
    rows, columns = (overlap(edges, side) for edges, side in zip((row_edges, column_edges), heat.shape, strict=True))
    return rows @ heat.double().cpu() @ columns.T


def marked_in_bands(scores: Tensor, marked: int, tiles: int) -> list[int]:
    """The original's count: of the `marked` best tokens, how many lie in each of `tiles` equal runs of the flattened map
    (bands of rows, where tiles were meant)."""
    best = scores.sort(descending=True, stable=True).indices[:marked]
    run = (best * tiles // len(scores)).clamp(max=tiles - 1)
    return torch.bincount(run, minlength=tiles).tolist()


def apportion(total: int, weights: Sequence[float], limits: Sequence[int]) -> list[int]:
    """Places in proportion to weights, by largest remainder, ties to the earlier one; none above its limit: what it can't
    hold is divided again among the others."""
    places = [0] * len(weights)
    total = min(total, sum(limits))
    while (rest := total - sum(places)) > 0:
        open_ = [i for i in range(len(weights)) if places[i] < limits[i]]
        some = [i for i in open_ if weights[i] > 0] or open_
        whole = sum(weights[i] for i in some)
        quota = {i: rest * (weights[i] / whole if whole > 0 else 1 / len(some)) for i in some}
        floors = {i: math.floor(round(quota[i], 9)) for i in some}
        by_rest = sorted(some, key=lambda i: (-round(quota[i] - floors[i], 9), i))
        for i in by_rest[: rest - sum(floors.values())]:
            floors[i] += 1
        for i in some:
            places[i] = min(limits[i], places[i] + floors[i])
    return places
