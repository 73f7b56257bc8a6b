"""What a method may do inside the vision tower, where `in_tower` says that it works there."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class ShrinksImages(Protocol):
    """downsample: the tower gets smaller images."""

    def smaller(self, pixels: Tensor, patch: int) -> Tensor:
        """pixels: [tiles, channels, height, width], patch: the side of a patch in pixels"""


@runtime_checkable
class MergesRows(Protocol):
    """ToMe: the tower's blocks merge rows."""

    def merged_per_block(self, blocks: int, tokens: int) -> list[int]:
        """How many rows each block merges away."""
