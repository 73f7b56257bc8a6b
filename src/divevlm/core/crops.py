"""HoloV's maths: places for runs of tokens ("crops") by attention and local variety."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from divevlm.core.top import unit

ALPHA = 0.09  # weight of the variance of cosines
GAIN = 1000.0  # of attention


def crop_sizes(n: int, crops: int) -> list[int]:
    """The first n mod crops runs are one longer."""
    return [n // crops + (i < n % crops) for i in range(crops)]


def variance(x: Tensor) -> Tensor:
    """[n] spread of each token's cosines to the others of its crop; its own counts as 0. x: [n, d]"""
    rows = unit(x)
    cosine = (rows @ rows.T).fill_diagonal_(0)
    others = max(1, len(rows) - 1)
    mean = cosine.sum(dim=1, keepdim=True) / others
    return (cosine - mean).square().sum(dim=1) / others


def crop_scores(x: Tensor, attention: Tensor, sizes: list[int], over: str = "crop") -> tuple[Tensor, Tensor]:
    """[crops] score of each crop and [n] of each token: t = 1000 a + 0.09 w var. x: [n, d], attention: [n]

    w brings the mean variance to the mean attention, within each "crop" (the original: the variance then cancels in the
    crop scores) or of "all".
    """
    spread = torch.cat([variance(part) for part in x.split(sizes)])
    loud = GAIN * attention.to(spread.dtype)

    def score(b: Tensor, v: Tensor) -> Tensor:
        return b + ALPHA * b.abs().mean() / (v.abs().mean() + 1e-6) * v

    if over == "all":
        tokens = score(loud, spread)
    else:
        tokens = torch.cat([score(b, v) for b, v in zip(loud.split(sizes), spread.split(sizes), strict=True)])
    return torch.stack([part.mean() for part in tokens.split(sizes)]), tokens


def crop_places(scores: Tensor, sizes: list[int], keep: int, *, overflow: bool = True) -> list[int]:
    """Places by share, rounded down, the rest one each to the largest shares. What does not fit into a crop goes to the
    crops with the next largest shares (`overflow`), or is lost as in the original."""
    share = (scores.double() / scores.double().sum()).tolist()
    places = [math.floor(round(part * keep, 6)) for part in share]
    order = sorted(range(len(sizes)), key=lambda i: (-share[i], i))
    for i in order[: keep - sum(places)]:
        places[i] += 1
    places = [min(place, size) for place, size in zip(places, sizes, strict=True)]
    for i in order if overflow else ():
        places[i] += min(keep - sum(places), sizes[i] - places[i])
    return places
