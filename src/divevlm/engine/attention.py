"""A few rows of one block's attention map, from its q and k: no `output_attentions`, no eager attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from divevlm.engine.masks import Columns


def rotated_keys(block: Any, hidden: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Keys of a decoder layer after RoPE [heads of keys, S, head_dim]. hidden: [S, d] on its way into it."""
    attention = block.self_attn
    cos, sin = (merged_table(table, attention) for table in tables)
    return _rotate(_heads(attention, "k", block.input_layernorm.forward(hidden)), cos, sin)


def repeated(block: Any, keys: Tensor) -> Tensor:
    """Keys for each head of the queries."""
    attention = block.self_attn
    heads: int = attention.q_proj.out_features // attention.head_dim
    return keys.repeat_interleave(heads // keys.shape[0], dim=0)


def attention_rows(
    block: Any,
    hidden: Tensor,
    tables: tuple[Tensor, Tensor],
    queries: Tensor,
    columns: Columns,
    past: Tensor | None = None,
) -> Tensor:
    """Softmax rows [heads, R, S] of one sample, in float32.

    block: a decoder layer, hidden: [S, d] on its way into it, tables: cos and sin [S, head_dim] (or [3, S, head_dim]),
    queries: [R] positions whose rows are wanted, past: keys [heads of keys, P, head_dim] of what came before: they take their
    share of the attention; columns: [P + S] what may be attended to, and how strongly.
    """
    attention = block.self_attn
    cos, sin = (merged_table(table, attention) for table in tables)
    q = _rotate(_heads(attention, "q", block.input_layernorm.forward(hidden[queries])), cos[queries], sin[queries])
    k = rotated_keys(block, hidden, tables)
    place = torch.arange(len(hidden), device=hidden.device)
    seen = place <= queries[:, None]
    if past is not None:
        k = torch.cat([past.to(k), k], dim=1)
        seen = torch.cat([seen.new_ones(len(queries), past.shape[1]), seen], dim=1)
    seen = seen & columns.valid
    logits: Tensor = (q.float() @ repeated(block, k).float().mT) * attention.scaling
    if columns.bias is not None:
        logits = logits + columns.bias
    return logits.masked_fill(~seen, -torch.inf).softmax(dim=-1)[..., -len(hidden) :]


def _heads(attention: Any, name: str, states: Tensor) -> Tensor:
    """[heads, rows, head_dim], through the norm of q or k where the family has one."""
    z = getattr(attention, f"{name}_proj").forward(states).unflatten(-1, (-1, attention.head_dim))
    norm = getattr(attention, f"{name}_norm", None)
    z = z if norm is None else norm.forward(z)
    heads: Tensor = z.transpose(0, 1)
    return heads


def merged_table(table: Tensor, attention: Any) -> Tensor:
    """M-RoPE of older versions: one table each for time, height and width, of which every section takes its own."""
    if table.dim() == 2:
        return table
    sections = attention.config.rope_parameters["mrope_section"] * 2
    return torch.cat([part[i % 3] for i, part in enumerate(torch.split(table, sections, dim=-1))], dim=-1)


def _rotate(z: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: the halves of the head are the two coordinates of each pair."""
    one, two = z.chunk(2, dim=-1)
    return z * cos + torch.cat((-two, one), dim=-1) * sin
