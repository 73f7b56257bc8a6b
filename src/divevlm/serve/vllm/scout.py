"""The first blocks of vLLM's language model over a whole prompt, without its KV cache."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from divevlm.checks import require


class Attention(nn.Module):
    """Causal attention over one sequence, in place of vLLM's, which reads and writes the KV cache."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.scale = own.num_heads, own.num_kv_heads, own.scaling

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[S, heads * head_dim] each -> [S, heads * head_dim]"""
        q = q.unflatten(-1, (self.heads, -1)).transpose(0, 1)
        k, v = (z.unflatten(-1, (self.kv_heads, -1)).transpose(0, 1) for z in (k, v))
        mixed = nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=self.scale, enable_gqa=self.heads != self.kv_heads
        )
        return mixed[0].transpose(0, 1).flatten(1)


def scout(text: Any, blocks: int, embeds: Tensor, positions: Tensor, deep: list[Tensor]) -> Tensor:
    """[S, d] states in front of block number `blocks`.

    embeds: [S, d]; positions: [S] or [3, S]; deep: [S, d] what is added behind each of the first blocks
    """
    hidden, residual = embeds.clone(), None  # vLLM's kernels write into what they are given
    for number, layer in enumerate(text.layers[:blocks]):
        hidden, residual = without_cache(layer)(positions, hidden, residual)
        if number < len(deep):
            hidden = hidden + deep[number]
    return hidden if residual is None else hidden + residual


def without_cache(layer: Any) -> Any:
    """The same block with the same weights."""
    window = getattr(layer.self_attn.attn, "sliding_window", None)
    require(
        window is None, "model", f"blocks with a window of {window}", "one whose blocks attend to the full sequence"
    )
    return _with(layer, self_attn=_with(layer.self_attn, attn=Attention(layer.self_attn)))


def _with(module: Any, **parts: nn.Module) -> Any:
    """A module that shares all with this one except for some of its parts."""
    other = copy(module)
    other._modules = {**module._modules, **parts}
    return other


def states_norm(text: Any, look: int, norm: str) -> Any:
    """What states pass before the method sees them."""
    if norm == "none":
        return lambda z: z
    return text.norm if norm == "final" else text.layers[look].input_layernorm


def embedded(embed: Any, ids: Tensor, visual: Tensor, rows: Tensor) -> Tensor:
    """[S, d] the prompt as it enters the first block. embed: of text; visual: [S] bool; rows: [N, d] in their places"""
    embeds: Tensor = embed(torch.where(visual, 0, ids)).clone()  # placeholders may be no words at all
    embeds[visual] = rows.to(embeds)
    return embeds
