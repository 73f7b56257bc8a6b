"""LLaVA-NeXT and what grew from it: a base view, then the mosaic of all tiles, unpadded, with a newline token a row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

from divevlm.models.base import Family, View, Visual


def base_side(config: Any) -> int:
    side: int = config.vision_config.image_size // config.vision_config.patch_size
    return side


def mosaic(config: Any, image_size: list[int]) -> tuple[int, int]:
    """Rows and columns of the tile mosaic once the padding of the resized image is cut off, as the model does it."""
    height, width = image_size
    tiles = get_anyres_image_grid_shape((height, width), config.image_grid_pinpoints, config.vision_config.image_size)
    rows, columns = (tile * base_side(config) for tile in tiles)
    if width / height > columns / rows:
        rows -= 2 * ((rows - int(round(height * columns / width, 7))) // 2)
    else:
        columns -= 2 * ((columns - int(round(width * rows / height, 7))) // 2)
    return rows, columns


def clips(given: Mapping[str, Any], side: int) -> list[tuple[View, ...]]:
    """The frames of each clip, as squares."""
    pixels = given.get("pixel_values_videos", given.get("pixel_values"))  # the argument's older name
    videos, frames = pixels.shape[:2]
    return [tuple(View(side, side, frame=t) for t in range(frames))] * videos


class LlavaNext(Family):
    name = "llava_next"
    checkpoints: ClassVar[tuple[str, ...]] = (
        "llava-hf/llava-v1.6-vicuna-7b-hf",
        "llava-hf/llava-v1.6-vicuna-13b-hf",
        "llava-hf/llava-v1.6-mistral-7b-hf",
    )

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        side = base_side(model.config)
        return [
            Visual((View(side, side), View(*mosaic(model.config, size), view=1, newlines=True)))
            for size in given["image_sizes"].tolist()
        ]


class LlavaNextVideo(LlavaNext):
    name = "llava_next_video"
    checkpoints: ClassVar[tuple[str, ...]] = ("llava-hf/LLaVA-NeXT-Video-7B-hf", "llava-hf/LLaVA-NeXT-Video-7B-DPO-hf")

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        if kind == "image":
            return super().visuals(model, kind, given)
        stride = model.config.spatial_pool_stride
        return [Visual(frames, "video") for frames in clips(given, base_side(model.config) // stride)]


class LlavaOnevision(Family):
    name = "llava_onevision"
    checkpoints: ClassVar[tuple[str, ...]] = (
        "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
        "llava-hf/llava-onevision-qwen2-7b-ov-hf",
    )

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        config, side = model.config, base_side(model.config)
        if kind == "video":
            pooled = math.ceil(side / 2)
            return [Visual((*frames[:-1], _ended(frames[-1])), "video") for frames in clips(given, pooled)]
        sizes, numbers = given["image_sizes"].tolist(), given.get("batch_num_images")
        alone = [True] * len(sizes) if numbers is None else [n == 1 for n in numbers.tolist() for _ in range(n)]
        ratio = given.get("vision_aspect_ratio") or config.vision_aspect_ratio
        most = int(ratio.removeprefix("anyres_max_"))
        found = []
        for size, tiled in zip(sizes, alone, strict=True):
            if not tiled:
                found.append(Visual((View(side, side, tail=1),)))
                continue
            rows, columns = mosaic(config, size)
            shrink = math.sqrt(rows * columns / (most * side**2))
            if shrink > 1.1:
                rows, columns = int(rows // shrink), int(columns // shrink)
            found.append(Visual((View(side, side), View(rows, columns, view=1, newlines=True))))
        return found


def _ended(view: View) -> View:
    """With the newline token that ends a clip."""
    return View(view.rows, view.columns, view.view, view.frame, tail=1)
