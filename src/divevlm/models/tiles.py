"""Families that write each tile of an image as a run of placeholders among text: the ids tell, the pixels don't.

A clip is a series of images to their processors, so each of its frames counts as an image here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from divevlm.models.base import Family, Heads, Layout, View, Visual, split_heads
from divevlm.models.places import Place, tile_places


def runs(mask: Tensor) -> list[tuple[int, int]]:
    """Begin and end of each run of True. mask: [S] bool"""
    edges = torch.diff(mask.int(), prepend=torch.zeros(1, dtype=torch.int), append=torch.zeros(1, dtype=torch.int))
    return list(zip((edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist(), strict=True))


def _merged(rows: Tensor, channels: int) -> Tensor:
    """Mean over the patches that stand side by side in each row [tokens, patches * channels]."""
    merged: Tensor = rows.unflatten(-1, (-1, channels)).mean(dim=1)
    return merged


class Tiled(Family):
    pools = True
    exact_tiling = False  # how its processor fits tiles to a picture (`places.tiling`)

    @abstractmethod
    def tile(self, config: Any) -> int:
        """Rows (and columns) of visual tokens in a tile."""

    @abstractmethod
    def images(self, row: Tensor, spans: list[tuple[int, int]], tokens: int) -> list[int]:
        """How many tiles each image of a row of ids has. spans: its runs of placeholders."""

    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        return []  # `layouts` reads them from the ids

    def layouts(self, model: Any, ids: Tensor, visuals: Mapping[str, Sequence[Visual]]) -> list[Layout]:
        side = self.tile(model.config)
        (token,) = set(self.token_ids(model.config).values())
        layouts = []
        for row in ids.cpu():
            mask = row == token
            layout = Layout(mask.nonzero()[:, 0])
            for tiles in self.images(row, runs(mask), side * side):
                layout.visuals.append(Visual(tuple(View(side, side, view=v) for v in range(tiles))))
            layouts.append(layout)
        return layouts

    def places(self, processor: Any, views: Sequence[View], size: tuple[int, int]) -> list[Place]:
        if len(views) == 1:
            return [Place()]
        return [*tile_places(len(views) - 1, size, self.exact_tiling), Place("whole")]


class InternVL(Tiled):
    """One run an image: its tiles, then a thumbnail."""

    name = "internvl"
    about = "tiles"
    videos = "frames as images"
    exact_tiling = True
    checkpoints: ClassVar[tuple[str, ...]] = (
        "OpenGVLab/InternVL3-1B-hf",
        "OpenGVLab/InternVL3-8B-hf",
        "OpenGVLab/InternVL3_5-8B-HF",
    )

    def token_ids(self, config: Any) -> dict[str, int]:
        return {"image": config.image_token_id}

    def tile(self, config: Any) -> int:
        size, patch = (
            v if isinstance(v, int) else v[0]
            for v in (config.vision_config.image_size, config.vision_config.patch_size)
        )
        return int(size // patch * config.downsample_ratio)

    def images(self, row: Tensor, spans: list[tuple[int, int]], tokens: int) -> list[int]:
        return [(end - begin) // tokens for begin, end in spans]

    def tower_heads(self, block: Any, hidden: Tensor, given: Mapping[str, Any]) -> Heads:
        attention = block.attention
        states = block.layernorm_before.forward(hidden)
        q, k = (
            split_heads(norm.forward(proj.forward(states)), attention.num_heads)
            for proj, norm in ((attention.q_proj, attention.q_norm), (attention.k_proj, attention.k_norm))
        )
        return Heads(q, k, k, attention.scale)

    def arrange(self, model: Any, kind: str, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        side = math.isqrt(rows.shape[1])
        shuffled = model.model.pixel_shuffle(rows.unflatten(1, (side, side)), model.config.downsample_ratio)
        return _merged(shuffled.flatten(0, 2), rows.shape[-1])


class Idefics3(Tiled):
    """One run a tile, each behind a token that names its place; the global view comes last in every image."""

    name = "idefics3"
    about = "tiles among text"
    nested_images = True
    checkpoints: ClassVar[tuple[str, ...]] = ("HuggingFaceM4/Idefics3-8B-Llama3",)
    text = "model.text_model"
    tower = "model.vision_model"
    projector = "model.connector"

    def token_ids(self, config: Any) -> dict[str, int]:
        return {"image": config.image_token_id}

    def tile(self, config: Any) -> int:
        vision = config.vision_config
        return math.isqrt((vision.image_size // vision.patch_size) ** 2 // config.scale_factor**2)

    def arrange(self, model: Any, kind: str, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        shuffled = model.model.connector.pixel_shuffle(rows, model.config.scale_factor)
        return _merged(shuffled.flatten(0, 1), rows.shape[-1])

    def images(self, row: Tensor, spans: list[tuple[int, int]], tokens: int) -> list[int]:
        counts, tiles = [], 0
        for begin, _ in spans:
            tiles += 1
            if row[begin - 1] == row[spans[-1][0] - 1]:  # the last run of a row is a global view
                counts.append(tiles)
                tiles = 0
        return counts


class SmolVLM(Idefics3):
    name = "smolvlm"
    videos = "frames as images"
    nested_videos = True
    checkpoints: ClassVar[tuple[str, ...]] = (
        "HuggingFaceTB/SmolVLM2-256M-Video-Instruct",
        "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
    )
