"""Qwen2-VL and its successors: grids of any size, merged 2 x 2, for images and videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.vision_utils import get_vision_window_index

from divevlm.models.base import Family, Heads, View, Visual


class Qwen2VL(Family):
    name = "qwen2_vl"
    about = "any grid, M-RoPE"
    videos = "yes"
    lmms_eval = "qwen2_vl"
    vllm = "Qwen2VLForConditionalGeneration"
    checkpoints: ClassVar[tuple[str, ...]] = (
        "Qwen/Qwen2-VL-2B-Instruct",
        "Qwen/Qwen2-VL-7B-Instruct",
        "Qwen/Qwen2-VL-72B-Instruct",
    )
    tower = "model.visual"
    projector = "model.visual.merger"
    pools = True
    most_tokens = 16 * 768

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        merge = model.config.vision_config.spatial_merge_size
        return [
            Visual(tuple(View(h // merge, w // merge, frame=t) for t in range(frames)), kind)
            for frames, h, w in given[f"{kind}_grid_thw"].tolist()
        ]

    def tower_heads(self, block: Any, hidden: Tensor, given: Mapping[str, Any]) -> Heads:
        attention = block.attn
        fused = attention.qkv.forward(block.norm1.forward(hidden[0]))
        q, k, _ = fused.unflatten(-1, (3, attention.num_heads, -1)).permute(1, 2, 0, 3)
        cos, sin = (table.float() for table in given["position_embeddings"])
        halves = ((-z.chunk(2, dim=-1)[1], z.chunk(2, dim=-1)[0]) for z in (q, k))
        turned = [(z * cos + torch.cat(pair, dim=-1) * sin)[None] for z, pair in zip((q, k), halves, strict=True)]
        return Heads(turned[0], turned[1], k[None], attention.scaling)

    def arrange(self, model: Any, kind: str, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        """Patches come in blocks that the merger makes one token of."""
        merged: Tensor = rows[0].unflatten(0, (-1, model.config.vision_config.spatial_merge_size**2)).mean(dim=1)
        return merged


class Qwen25VL(Qwen2VL):
    """Its tower works on windows and puts their rows one after another."""

    name = "qwen2_5_vl"
    lmms_eval = ""
    vllm = "Qwen2_5_VLForConditionalGeneration"
    checkpoints: ClassVar[tuple[str, ...]] = (
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "Qwen/Qwen2.5-VL-32B-Instruct",
    )

    def arrange(self, model: Any, kind: str, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        tower = model.model.visual
        order, _ = get_vision_window_index(
            given[f"{kind}_grid_thw"], tower.spatial_merge_size, tower.window_size, tower.patch_size
        )
        return super().arrange(model, kind, given, rows)[order.to(rows.device).argsort()]


class Qwen3VL(Qwen2VL):
    """Adds features of deeper tower layers to the visual rows after its first blocks; the default cut is behind the last."""

    name = "qwen3_vl"
    about = "any grid, M-RoPE, deepstack"
    lmms_eval = ""
    vllm = "Qwen3VLForConditionalGeneration"
    checkpoints: ClassVar[tuple[str, ...]] = (
        "Qwen/Qwen3-VL-2B-Instruct",
        "Qwen/Qwen3-VL-4B-Instruct",
        "Qwen/Qwen3-VL-8B-Instruct",
    )
    default_layer = 3
    deepstack = True
