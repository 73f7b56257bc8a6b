"""LLaVA-1.5: one square view of CLIP patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from divevlm.models.base import Family, View, Visual
from divevlm.models.places import Place, centre_crop


class Llava(Family):
    name = "llava"
    about = "one view"
    lmms_eval = "llava_hf"
    vllm = "LlavaForConditionalGeneration"
    plain = True
    most_tokens = 576
    checkpoints: ClassVar[tuple[str, ...]] = (
        "llava-hf/llava-1.5-7b-hf",
        "llava-hf/llava-1.5-13b-hf",
    )

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        patch = model.config.vision_config.patch_size
        images, _, height, width = given["pixel_values"].shape
        return [Visual((View(height // patch, width // patch),))] * images

    def usual_views(self, config: Any) -> list[int]:
        return [(config.vision_config.image_size // config.vision_config.patch_size) ** 2]

    def places(self, processor: Any, views: Sequence[View], size: tuple[int, int]) -> list[Place]:
        part = getattr(processor, "image_processor", None)
        padded = bool(getattr(part, "do_pad", False))
        return [Place(padded=True) if padded else Place(box=centre_crop(part, size))]
