"""Fresh weights that learn quickly: the heads of the tower begin as soft look-ups of neighbouring patches."""

from __future__ import annotations

import math
from typing import Any

import torch
from divevlm_tiny.scene import GRID
from torch import Tensor

WAVES = (3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 48.0)  # patches
CHANNELS = 4 * len(WAVES)  # the last channels of the tower carry sine and cosine of row and column
OFFSETS = (
    ((0, -1), (0, 1), (-1, 0), (1, 0), (0, 0), (1, 1)),
    ((0, -1), (0, 1), (-1, 0), (1, 0), (-1, -1), (-1, 1)),
    ((0, -2), (0, 2), (-2, 0), (2, 0), (0, 0), (1, -1)),
    ((0, -2), (0, 2), (-2, 0), (2, 0), (0, -3), (0, 3)),
)


def waves(row: Tensor, column: Tensor) -> Tensor:
    """[n] rows, [n] columns -> [n, CHANNELS]"""
    parts = []
    for length in WAVES:
        for place in (row, column):
            angle = 2 * math.pi * place / length
            parts += [angle.sin(), angle.cos()]
    return torch.stack(parts, dim=-1)


def shift(rows: float, columns: float) -> Tensor:
    """The matrix that moves `waves` of a place to those of the place next to it. [CHANNELS, CHANNELS]"""
    blocks = []
    for length in WAVES:
        for step in (rows, columns):
            angle = 2 * math.pi * step / length
            blocks.append(torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]))
    moved: Tensor = torch.block_diag(*blocks)
    return moved


@torch.no_grad()
def prepare(model: Any, sharpness: float = 1.2) -> None:
    """Set positions and the query and key weights of the tower; larger word embeddings for the language model."""
    tower = model.model.vision_tower
    width = tower.config.hidden_size
    head = width // tower.config.num_attention_heads
    if head >= CHANNELS:
        places = torch.arange(GRID * GRID)
        table = tower.embeddings.position_embedding.weight
        table.mul_(0.5)
        table[1:, -CHANNELS:] = waves((places // GRID).float(), (places % GRID).float())
        tower.embeddings.patch_embedding.weight[-CHANNELS:] = 0
        for block, offsets in zip(tower.encoder.layers, OFFSETS, strict=False):
            attention = block.self_attn
            for number, (rows, columns) in enumerate(offsets[: tower.config.num_attention_heads]):
                span = slice(number * head, number * head + CHANNELS)
                attention.q_proj.weight[span] *= 0.2
                attention.k_proj.weight[span] *= 0.2
                attention.q_proj.weight[span, -CHANNELS:] = sharpness * shift(rows, columns)
                attention.k_proj.weight[span, -CHANNELS:] = sharpness * torch.eye(CHANNELS)
            attention.out_proj.weight[-CHANNELS:] = 0
            block.mlp.fc2.weight[-CHANNELS:] = 0
    model.get_input_embeddings().weight.normal_(0, 0.1)


@torch.no_grad()
def prepare_qwen(model: Any, sharpness: float = 5.0) -> None:
    """The same for a tower with rotary positions: a bias of the queries, turned by the way to a neighbour, finds its keys."""
    tower = model.model.visual
    frequencies = tower.rotary_pos_emb.inv_freq
    strength = sharpness * (frequencies > 0.09).float().repeat(2)  # slower waves do not tell neighbours apart
    for block, offsets in zip(tower.blocks, OFFSETS, strict=False):
        attention = block.attn
        head, width = attention.head_dim, attention.dim
        for number, (rows, columns) in enumerate(offsets[: attention.num_heads]):
            angle = torch.cat([frequencies * rows, frequencies * columns])
            at = number * head
            attention.qkv.weight[at : at + head] *= 0.2
            attention.qkv.weight[width + at : width + at + head] *= 0.2
            attention.qkv.bias[at : at + head] = strength.repeat(2) * torch.cat([angle.cos(), angle.sin()])
            attention.qkv.bias[width + at : width + at + head] = torch.cat([strength, 0 * strength])
    model.get_input_embeddings().weight.normal_(0, 0.1)
