"""Qwen2-VL and its successors: grids of any size, merged 2 x 2, for images and videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from divevlm.models.base import Family, View, Visual


class Qwen2VL(Family):
    name = "qwen2_vl"
    checkpoints: ClassVar[tuple[str, ...]] = (
        "Qwen/Qwen2-VL-2B-Instruct",
        "Qwen/Qwen2-VL-7B-Instruct",
        "Qwen/Qwen2-VL-72B-Instruct",
    )
    tower = "model.visual"
    projector = "model.visual.merger"

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        merge = model.config.vision_config.spatial_merge_size
        return [
            Visual(tuple(View(h // merge, w // merge, frame=t) for t in range(frames)), kind)
            for frames, h, w in given[f"{kind}_grid_thw"].tolist()
        ]


class Qwen25VL(Qwen2VL):
    name = "qwen2_5_vl"
    checkpoints: ClassVar[tuple[str, ...]] = (
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "Qwen/Qwen2.5-VL-32B-Instruct",
    )


class Qwen3VL(Qwen2VL):
    """Adds features of deeper tower layers to the visual rows after its first blocks; the default cut is behind the last."""

    name = "qwen3_vl"
    checkpoints: ClassVar[tuple[str, ...]] = (
        "Qwen/Qwen3-VL-2B-Instruct",
        "Qwen/Qwen3-VL-4B-Instruct",
        "Qwen/Qwen3-VL-8B-Instruct",
    )
    default_layer = 3
    deepstack = True
