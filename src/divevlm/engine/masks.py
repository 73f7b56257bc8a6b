"""Attention masks for the blocks after a cut, in the form that the model's attention takes."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, flash_attention_mask, sdpa_mask

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


def stage_mask(kind: Kind, valid: Tensor, queries: int, dtype: torch.dtype) -> Tensor | None:
    """Causal mask of the last `queries` of the columns `valid` [B, columns]; None where the attention needs none.

    A query always sees itself, so that rows of padding stay finite.
    """
    columns = valid.shape[1]
    clean = bool(valid.all())
    if kind == "flash":
        return None if clean else valid
    if clean and (queries == 1 or (kind == "sdpa" and queries == columns)):
        return None
    row = torch.arange(columns - queries, columns, device=valid.device)[:, None]
    column = torch.arange(columns, device=valid.device)
    allowed = (valid[:, None, None] & (column <= row)) | (column == row)
    if kind == "sdpa":
        return allowed
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)
