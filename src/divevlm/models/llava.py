"""LLaVA-1.5: one square view of CLIP patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from divevlm.models.base import Family, View, Visual


class Llava(Family):
    name = "llava"
    plain = True
    checkpoints: ClassVar[tuple[str, ...]] = (
        "llava-hf/llava-1.5-7b-hf",
        "llava-hf/llava-1.5-13b-hf",
    )

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        patch = model.config.vision_config.patch_size
        images, _, height, width = given["pixel_values"].shape
        return [Visual((View(height // patch, width // patch),))] * images
