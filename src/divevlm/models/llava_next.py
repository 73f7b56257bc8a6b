"""LLaVA-NeXT and what grew from it: a base view, then the mosaic of all tiles, unpadded, with a newline token a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, image_size_to_num_patches

from divevlm.models.base import Family, View, Visual
from divevlm.models.places import Place, centre_crop


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


def tile_counts(config: Any, sizes: Tensor) -> list[int]:
    """How many tower inputs each image is: its base view and its tiles."""
    side = config.vision_config.image_size
    return [image_size_to_num_patches(size, config.image_grid_pinpoints, side) for size in sizes]


def clips(given: Mapping[str, Any], side: int) -> list[tuple[View, ...]]:
    """The frames of each clip, as squares."""
    pixels = given.get("pixel_values_videos", given.get("pixel_values"))  # the argument's older name
    videos, frames = pixels.shape[:2]
    return [tuple(View(side, side, frame=t) for t in range(frames))] * videos


class LlavaNext(Family):
    name = "llava_next"
    about = "base view + tile mosaic with newlines"
    lmms_eval = "llava_hf"
    vllm = "LlavaNextForConditionalGeneration"
    most_tokens = 2880 + 96
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

    def arrange(self, model: Any, kind: str, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        sizes = given["image_sizes"]
        parts = torch.split(rows, tile_counts(model.config, sizes))
        packed, _ = model.model.pack_image_features(
            parts, sizes, "default", image_newline=rows.new_zeros(rows.shape[-1])
        )
        return torch.cat(packed)

    def usual_views(self, config: Any) -> list[int]:
        return [base_side(config) ** 2] * 5  # the base view and four tiles

    def places(self, processor: Any, views: Sequence[View], size: tuple[int, int]) -> list[Place]:
        return [Place("base view"), Place("tiles")]


class LlavaNextVideo(LlavaNext):
    name = "llava_next_video"
    about = "base view + tile mosaic; pooled frames"
    videos = "yes"
    lmms_eval = vllm = ""
    most_tokens = 32 * 144
    checkpoints: ClassVar[tuple[str, ...]] = ("llava-hf/LLaVA-NeXT-Video-7B-hf", "llava-hf/LLaVA-NeXT-Video-7B-DPO-hf")

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        if kind == "image":
            return super().visuals(model, kind, given)
        stride = model.config.spatial_pool_stride
        return [Visual(frames, "video") for frames in clips(given, base_side(model.config) // stride)]

    def arrange(self, model: Any, kind: str, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        if kind == "image":
            return super().arrange(model, kind, given, rows)
        side = base_side(model.config)
        grid = rows.mT.unflatten(-1, (side, side))
        pooled = nn.functional.avg_pool2d(grid, model.config.spatial_pool_stride)
        return pooled.flatten(2).mT.flatten(0, 1)

    def usual_views(self, config: Any) -> list[int]:
        return []

    def frame_place(self, processor: Any, size: tuple[int, int]) -> Place:
        return Place(box=centre_crop(getattr(processor, "video_processor", None), size))


class LlavaOnevision(Family):
    name = "llava_onevision"
    about = "base view + tile mosaic; pooled frames"
    videos = "yes"
    lmms_eval = "llava_hf"
    vllm = "LlavaOnevisionForConditionalGeneration"
    pools = True
    most_tokens = 32 * 196
    nested_images = True
    checkpoints: ClassVar[tuple[str, ...]] = (
        "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
        "llava-hf/llava-onevision-qwen2-7b-ov-hf",
    )

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        config, side = model.config, base_side(model.config)
        if kind == "video":
            pooled = math.ceil(side / 2)
            return [Visual((*frames[:-1], _ended(frames[-1])), "video") for frames in clips(given, pooled)]
        sizes = given["image_sizes"].tolist()
        most = int(self._ratio(config, given).removeprefix("anyres_max_"))
        visuals = []
        for size, tiled in zip(sizes, self._tiled(given), strict=True):
            if not tiled:
                visuals.append(Visual((View(side, side, tail=1),)))
                continue
            rows, columns = mosaic(config, size)
            shrink = math.sqrt(rows * columns / (most * side**2))
            if shrink > 1.1:
                rows, columns = int(rows // shrink), int(columns // shrink)
            visuals.append(Visual((View(side, side), View(rows, columns, view=1, newlines=True))))
        return visuals

    def places(self, processor: Any, views: Sequence[View], size: tuple[int, int]) -> list[Place]:
        """One view: the image is one among others."""
        return [Place(padded=True)] if len(views) == 1 else [Place("base view"), Place("tiles")]

    def arrange(self, model: Any, kind: str, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        empty = rows.new_zeros(rows.shape[-1])
        if kind == "video":
            side = base_side(model.config)
            grid, size = rows.mT.unflatten(-1, (side, side)), (math.ceil(side / 2),) * 2
            pooled = nn.functional.interpolate(grid, size, mode="bilinear").flatten(2).mT
            clips = pooled.reshape(len(self.visuals(model, kind, given)), -1, rows.shape[-1])
            return torch.cat([clips, empty.expand(len(clips), 1, -1)], dim=1).flatten(0, 1)
        sizes, ratio = given["image_sizes"], self._ratio(model.config, given)
        counts = [
            n if tiled else 1 for n, tiled in zip(tile_counts(model.config, sizes), self._tiled(given), strict=True)
        ]
        parts = torch.split(rows, counts)
        packed, _ = model.model.pack_image_features(parts, sizes, image_newline=empty, vision_aspect_ratio=ratio)
        return torch.cat(packed)

    @staticmethod
    def _ratio(config: Any, given: Mapping[str, Any]) -> str:
        ratio: str = given.get("vision_aspect_ratio") or config.vision_aspect_ratio
        return ratio

    @staticmethod
    def _tiled(given: Mapping[str, Any]) -> list[bool]:
        """Images that come with others in their sample are not cut into tiles."""
        numbers = given.get("batch_num_images")
        if numbers is None:
            return [True] * len(given["image_sizes"])
        return [n == 1 for n in numbers.tolist() for _ in range(n)]


def _ended(view: View) -> View:
    """With the newline token that ends a clip."""
    return View(view.rows, view.columns, view.view, view.frame, tail=1)
