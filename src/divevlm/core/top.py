"""The k largest, and the largest of all, with ties to the lower index on every device."""

from __future__ import annotations

import torch
from torch import Tensor


def top_k(scores: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """[..., k] indices of the k largest scores, best first. mask: True where a token may be taken (the others come last)."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def best(scores: Tensor, slack: float = 0.0) -> int:
    """The lowest index whose score is within `slack` of the largest: rounding must not decide between equals."""
    return int((scores >= scores.max() - slack).view(torch.uint8).argmax())


def unit(x: Tensor) -> Tensor:
    """Rows of length 1 (zero rows stay zero), in float32 at least."""
    return torch.nn.functional.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
