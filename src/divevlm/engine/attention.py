"""A few rows of one block's attention map, from its q and k: no `output_attentions`, no eager attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attention_rows(block: Any, hidden: Tensor, tables: tuple[Tensor, Tensor], queries: Tensor, valid: Tensor) -> Tensor:
    """Softmax rows [heads, R, S] of one sample, in float32.

    block: a decoder layer, hidden: [S, d] on its way into it, tables: cos and sin [S, head_dim] (or [3, S, head_dim]),
    queries: [R] positions whose rows are wanted, valid: [S] False for padding.
    """
    attention = block.self_attn
    states = block.input_layernorm.forward(hidden)
    q = _heads(attention, "q", states[queries])
    k = _heads(attention, "k", states)
    cos, sin = (_merged(table, attention) for table in tables)
    q, k = _rotate(q, cos[queries], sin[queries]), _rotate(k, cos, sin)
    k = k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    logits: Tensor = (q.float() @ k.float().mT) * attention.scaling
    place = torch.arange(len(hidden), device=hidden.device)
    seen = valid & (place <= queries[:, None])
    return logits.masked_fill(~seen, -torch.inf).softmax(dim=-1)


def _heads(attention: Any, name: str, states: Tensor) -> Tensor:
    """[heads, rows, head_dim], through the norm of q or k where the family has one."""
    z = getattr(attention, f"{name}_proj").forward(states).unflatten(-1, (-1, attention.head_dim))
    norm = getattr(attention, f"{name}_norm", None)
    z = z if norm is None else norm.forward(z)
    heads: Tensor = z.transpose(0, 1)
    return heads


def _merged(table: Tensor, attention: Any) -> Tensor:
    """M-RoPE of older versions: one table each for time, height and width, of which every section takes its own."""
    if table.dim() == 2:
        return table
    sections = attention.config.rope_parameters["mrope_section"] * 2
    return torch.cat([part[i % 3] for i, part in enumerate(torch.split(table, sections, dim=-1))], dim=-1)


def _rotate(z: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: the halves of the head are the two coordinates of each pair."""
    one, two = z.chunk(2, dim=-1)
    return z * cos + torch.cat((-two, one), dim=-1) * sin
