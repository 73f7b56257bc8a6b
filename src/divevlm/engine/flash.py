"""Proportional attention on flash kernels, which take no bias: it goes into more columns of keys and queries.

`[q, 1] [k, b] = q k + b`: exact, as ERA does it (Wang et al., arXiv 2606.31982). Blocks behind a cut get a `Biased` in place
of their mask; their attention looks up its function under NAME, which makes the columns and calls the model's own kernel.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "divevlm_biased_flash"
ROOM = 8  # more columns: kernels want head sizes in steps of eight
LARGEST = 256  # head that kernels take


class Biased(NamedTuple):
    """What blocks attend to, for all queries alike."""

    bias: Tensor  # [B, columns] added to the logits towards each
    valid: Tensor | None  # [B, columns] False for padding; None = there is none


class Config:
    """Of an attention: the model's own, but for the name of the function where that is a flash kernel's."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        if name == "own":  # asked for while a copy is being made
            raise AttributeError(name)
        return getattr(self.own, name)

    @property
    def _attn_implementation(self) -> Any:
        name = self.own._attn_implementation
        return NAME if ALL_MASK_ATTENTION_FUNCTIONS.get(name) is flash_attention_mask else name


class Attention:
    """An attention with the model's own config, for the model's own function."""

    def __init__(self, module: Any) -> None:
        self.module, self.config = module, module.config.own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def attach(layers: Any, stack: ExitStack) -> None:
    """Until the stack is closed."""
    AttentionInterface.register(NAME, attend)
    for layer in layers:
        attention, own = layer.self_attn, layer.self_attn.config
        attention.config = Config(own)
        stack.callback(setattr, attention, "config", own)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **kwargs: Any
) -> tuple[Tensor, Any]:
    """query, key, value: [B, heads, rows, head_dim] -> [B, rows, heads, head_dim]"""
    run, own = ALL_ATTENTION_FUNCTIONS[module.config.own._attn_implementation], Attention(module)
    if not isinstance(mask, Biased):
        plain: tuple[Tensor, Any] = run(own, query, key, value, mask, scaling=scaling, **kwargs)
        return plain
    size = query.shape[-1]
    scaling = size**-0.5 if scaling is None else scaling
    bias = mask.bias.to(key.device, torch.float)[:, None, :, None] / scaling
    high = bias.bfloat16().float()
    both = torch.cat([high, bias - high], dim=-1).to(key.dtype)  # the second: what half precision would round off
    columns = pad(both, (0, ROOM - 2)).expand(-1, key.shape[1], -1, -1)
    ones = torch.ones_like(query[..., :2])
    output, weights = run(
        own,
        torch.cat([query, pad(ones, (0, ROOM - 2))], dim=-1),
        torch.cat([key, columns], dim=-1),
        pad(value, (0, ROOM)),
        mask.valid,
        scaling=scaling,
        **kwargs,
    )
    return output[..., : value.shape[-1]], weights
