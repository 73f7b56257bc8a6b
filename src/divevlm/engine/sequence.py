"""The sequence behind a cut: which rows go on, and what its blocks may attend to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, flash_attention_mask, sdpa_mask

from divevlm.engine.flash import Biased

Kind = Literal["eager", "sdpa", "flash"]
KINDS: tuple[tuple[Any, Kind], ...] = ((eager_mask, "eager"), (sdpa_mask, "sdpa"), (flash_attention_mask, "flash"))


def mask_kind(config: Any) -> Kind:
    """Which masks the attention of this language model takes: additive, bool, or two-dimensional."""
    name = config._attn_implementation
    function = ALL_MASK_ATTENTION_FUNCTIONS.get(name)
    for known, kind in KINDS:
        if function is known:
            return kind
    raise ValueError(f"attn_implementation must be one with eager, sdpa or flash masks, got {name!r}")


@dataclass(frozen=True)
class Columns:
    """Columns of the attention map: which tokens may be attended to, and how strongly."""

    valid: Tensor  # [B, columns] False for padding, and for dropped tokens whose own output is needed
    bias: Tensor | None = None  # [B, columns] added to the logits towards each; None = nothing is

    def then(self, more: Columns) -> Columns:
        """These, and behind them others."""
        bias = None
        if self.bias is not None or more.bias is not None:
            parts = [torch.zeros_like(c.valid, dtype=torch.float) if c.bias is None else c.bias for c in (self, more)]
            bias = torch.cat([parts[0].to(parts[1].device), parts[1]], dim=1)
        return Columns(torch.cat([self.valid.to(more.valid.device), more.valid], dim=1), bias)

    def map(self, change: Callable[[Tensor], Tensor]) -> Columns:
        return Columns(change(self.valid), None if self.bias is None else change(self.bias))


def causal_mask(kind: Kind, columns: Columns, queries: int, dtype: torch.dtype) -> Tensor | Biased | None:
    """Mask of the last `queries` of the columns; None where the attention needs none.

    A query always sees itself, so that rows of padding stay finite.
    """
    valid, bias = columns.valid, columns.bias
    length = valid.shape[1]
    full = bool(valid.all())
    if kind == "flash":
        padded = None if full else valid
        return padded if bias is None else Biased(bias, padded)
    clean = full and bias is None
    if clean and (queries == 1 or (kind == "sdpa" and queries == length)):
        return None
    row = torch.arange(length - queries, length, device=valid.device)[:, None]
    column = torch.arange(length, device=valid.device)
    allowed = (valid[:, None, None] & (column <= row)) | (column == row)
    if kind == "sdpa" and bias is None:
        return allowed
    mask = torch.zeros(allowed.shape, dtype=dtype, device=valid.device)
    if bias is not None:
        mask += bias[:, None, None].to(mask)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)


@dataclass(frozen=True)
class Deepstack:
    """Features that the model adds to its visual rows after each of the first blocks (Qwen3-VL)."""

    mask: Tensor  # [B, S] the visual rows
    features: list[Tensor]  # [visual rows, d] of each block

    def add(self, hidden: Tensor, block: int, index: Tensor | None) -> Tensor:
        """hidden: output of block number `block`, of the full sequence or of the positions `index`."""
        if not 0 <= block < len(self.features):
            return hidden
        extra = hidden.new_zeros(*self.mask.shape, hidden.shape[-1])
        extra[self.mask.to(hidden.device)] = self.features[block].to(hidden.device, hidden.dtype)
        return hidden + (extra if index is None else take_rows(extra, index))


def left_padded(kept: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The kept positions of each row in the order of their places, padded on the left to one length.

    kept: [B, S] bool, places: [B, S] -> index, valid: [B, Q]
    """
    length = int(kept.sum(dim=1).max())
    order = torch.where(kept, places, places - kept.shape[1]).argsort(dim=1, stable=True)  # the kept ones come last
    index = order[:, kept.shape[1] - length :]
    return index, kept.gather(1, index)


def take_rows(z: Tensor, index: Tensor) -> Tensor:
    """Of the sequence dimension (the last but one). z: [..., B or 1, S, d], index: [B, Q]"""
    index = index.to(z.device)[..., None]
    z = z.expand(*z.shape[:-3], index.shape[0], *z.shape[-2:])
    return z.gather(-2, index.expand(*z.shape[:-2], index.shape[1], z.shape[-1]))


def row_of_position(index: Tensor | None, present: Tensor) -> Tensor:
    """[B, S] the row among `index` of each position of the full sequence (anything for those dropped)."""
    positions = torch.arange(present.shape[1], device=present.device).expand(len(present), -1)
    if index is None:
        return positions
    return torch.zeros_like(positions).scatter_(1, index, positions[:, : index.shape[1]])


def kept_tail(kept: Tensor) -> int:
    """How many of the last positions are kept in every row. kept: [B, S] bool"""
    return int(kept.flip(1).long().cumprod(dim=1).sum(dim=1).min())
