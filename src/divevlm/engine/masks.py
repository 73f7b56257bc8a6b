"""Attention masks for the blocks after a cut, in the form that the model's attention takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, flash_attention_mask, sdpa_mask

from divevlm.checks import require

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
    """What the tokens of some rows look like to later ones."""

    valid: Tensor  # [B, columns] False for those that nobody may attend to (padding)
    bias: Tensor | None = None  # [B, columns] added to the logits towards each; None = nothing is

    def then(self, more: Columns) -> Columns:
        """These, and behind them others."""
        bias = None
        if self.bias is not None or more.bias is not None:
            parts = [torch.zeros_like(c.valid, dtype=torch.float) if c.bias is None else c.bias for c in (self, more)]
            bias = torch.cat([parts[0].to(parts[1].device), parts[1]], dim=1)
        return Columns(torch.cat([self.valid.to(more.valid.device), more.valid], dim=1), bias)

    def each(self, change: Callable[[Tensor], Tensor]) -> Columns:
        return Columns(change(self.valid), None if self.bias is None else change(self.bias))


def stage_mask(kind: Kind, seen: Columns, queries: int, dtype: torch.dtype) -> Tensor | None:
    """Causal mask of the last `queries` of the columns; None where the attention needs none.

    A query always sees itself, so that rows of padding stay finite.
    """
    valid, bias = seen.valid, seen.bias
    columns = valid.shape[1]
    clean = bool(valid.all()) and bias is None
    if kind == "flash":
        allowed_kinds = "False with flash attention, which takes no bias: use attn_implementation='sdpa'"
        require(bias is None, "proportional", True, allowed_kinds)
        return None if clean else valid
    if clean and (queries == 1 or (kind == "sdpa" and queries == columns)):
        return None
    row = torch.arange(columns - queries, columns, device=valid.device)[:, None]
    column = torch.arange(columns, device=valid.device)
    allowed = (valid[:, None, None] & (column <= row)) | (column == row)
    if kind == "sdpa" and bias is None:
        return allowed
    mask = torch.zeros(allowed.shape, dtype=dtype, device=valid.device)
    if bias is not None:
        mask += bias[:, None, None].to(mask)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)
