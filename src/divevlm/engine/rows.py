"""Rows of a sequence: which of them go on behind a cut."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Deepstack:
    """Features that the model adds to its visual rows after each of the first blocks (Qwen3-VL)."""

    mask: Tensor  # [B, S] the visual rows
    features: list[Tensor]  # one [visual rows, d] a block

    def add(self, hidden: Tensor, block: int, index: Tensor | None) -> Tensor:
        """hidden: what block number `block` put out, of the full sequence or of the positions `index`."""
        if not 0 <= block < len(self.features):
            return hidden
        extra = hidden.new_zeros(*self.mask.shape, hidden.shape[-1])
        extra[self.mask.to(hidden.device)] = self.features[block].to(hidden.device, hidden.dtype)
        return hidden + (extra if index is None else take(extra, index))


def left_aligned(kept: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The kept positions of each row in the order of their places, padded on the left to one length.

    kept: [B, S] bool, places: [B, S] -> index, valid: [B, Q]
    """
    counts = kept.sum(dim=1)
    length = int(counts.max())
    order = torch.where(kept, places, places - kept.shape[1]).argsort(dim=1, stable=True)  # the kept ones come last
    index = order[:, kept.shape[1] - length :]
    return index, kept.gather(1, index)


def take(z: Tensor, index: Tensor) -> Tensor:
    """Rows of the sequence dimension (the last but one). z: [..., B or 1, S, d], index: [B, Q]"""
    index = index.to(z.device)[..., None]
    z = z.expand(*z.shape[:-3], index.shape[0], *z.shape[-2:])
    return z.gather(-2, index.expand(*z.shape[:-2], index.shape[1], z.shape[-1]))


def whereabouts(index: Tensor | None, present: Tensor) -> Tensor:
    """[B, S] where each position of the full sequence is among the rows `index` (anything for those dropped)."""
    batch, length = present.shape
    here = torch.arange(length, device=present.device).expand(batch, -1)
    if index is None:
        return here
    return torch.zeros_like(here).scatter_(1, index, here[:, : index.shape[1]])


def trailing(stay: Tensor) -> int:
    """How many of the last positions stay in every row. stay: [B, S] bool"""
    return int(stay.flip(1).long().cumprod(dim=1).sum(dim=1).min())
