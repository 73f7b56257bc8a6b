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

from divevlm.checks import require
from divevlm.engine.patches import itself

NAME = "divevlm_biased_flash"
ROOM = 8  # more columns: kernels want head sizes in steps of eight
LARGEST = {"flash_attention_4": 128}  # heads that kernels take (the fourth: on the newest devices); others 256


class Biased(NamedTuple):
    """What blocks attend to, for all queries alike."""

    bias: Tensor  # [B, columns] added to the logits towards each
    valid: Tensor | None  # [B, columns] False for padding; None = there is none


class Config:
    """Of an attention: the model's own, but for the name of the function where that is a flash kernel's. Copies are the own."""

    def __init__(self, own: Any) -> None:
        vars(self)["own"] = own

    def __getattribute__(self, name: str) -> Any:
        if name in ("own", "__dict__", "__class__", "__reduce__", "__reduce_ex__"):
            return super().__getattribute__(name)
        value = getattr(self.own, name)
        flash = name == "_attn_implementation" and ALL_MASK_ATTENTION_FUNCTIONS.get(value) is flash_attention_mask
        return NAME if flash else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.own, name, value)

    def __reduce__(self) -> Any:
        return itself, (self.own,)


class Attention:
    """An attention with the model's own config, for the model's own function."""

    def __init__(self, module: Any) -> None:
        vars(self).update(module=module, config=module.config.own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.module, name, value)


def attach(layers: Any, stack: ExitStack) -> None:
    """Until the stack is closed."""
    AttentionInterface.register(NAME, attend)
    for layer in layers:
        attention, config = layer.self_attn, Config(layer.self_attn.config)
        attention.config = config
        stack.callback(_put_back, attention, config)


def _put_back(attention: Any, config: Config) -> None:
    if attention.config is config:  # and not another one by now
        attention.config = config.own


def check(name: str, attention: Any, proportional: Any) -> None:
    """Refuse heads that leave no room. name: of the kernel"""
    size = getattr(attention, "head_dim", None) or attention.qk_head_dim
    allowed = f"False with {name} and heads of {size}, which leave no room for it: use attn_implementation='sdpa'"
    require(size + ROOM <= LARGEST.get(name, 256), "proportional", proportional, allowed)


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
