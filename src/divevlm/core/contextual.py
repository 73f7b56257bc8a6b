"""VisionZip's contextual tokens: what was not salient, merged into evenly spaced targets."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from divevlm.core.top import unit


def target_places(rest: int, contextual: int) -> Tensor:
    """[contextual] evenly spaced places among `rest` tokens: 0, step, 2 step, ... with step = rest // contextual."""
    step = max(1, rest // max(1, contextual))
    return torch.arange(0, rest, step)[:contextual]


def nearest_target(keys: Tensor, targets: Tensor) -> Tensor:
    """[R] which target each token joins, by cosine of keys; a target joins itself. keys: [R, c], targets: [C] places"""
    rows = unit(keys)
    joined = (rows @ rows[targets].T).argmax(dim=1)
    joined[targets] = torch.arange(len(targets), device=keys.device)
    return joined


def contextual_rows(x: Tensor, targets: Tensor, joined: Tensor, merge: Literal["add", "mean"] = "add") -> Tensor:
    """[C, d]: "add" the mean of those who joined to the target, as the original does (about twice as long), or the "mean"
    of all of them. x: [R, d], targets: [C], joined: [R]
    """
    rows = x.to(torch.promote_types(x.dtype, torch.float32))
    total = rows.new_zeros(len(targets), rows.shape[1]).index_add_(0, joined, rows)
    count = torch.bincount(joined, minlength=len(targets))[:, None]
    own = rows[targets]
    if merge == "mean":
        return total / count
    return own + (total - own) / (count - 1).clamp_min(1)
