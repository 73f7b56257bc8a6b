"""Qwen2-VL's processor without torchvision: what its video processor does to frames, in plain torch.

transformers' own video processor can't be imported where torchvision is missing. The two classes here bear the names of the
stock ones, since a saved processor names its classes: the folder of the model then names those that `AutoProcessor` finds
where torchvision is there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as hf
from torch.nn import functional
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.video_processing_utils import BaseVideoProcessor


class Qwen2VLVideoProcessor(BaseVideoProcessor):  # type: ignore[misc]
    """Clips of uint8 frames [T, h, w, 3] -> rows of patches in groups of 2 x 2, two frames deep; grids (t, h, w)."""

    patch_size, merge_size, temporal_patch_size = 14, 2, 2
    model_input_names = ["pixel_values_videos", "video_grid_thw"]  # noqa: RUF012

    def __init__(self, shortest: int = 56 * 56, longest: int = 336 * 336) -> None:
        super().__init__(size={"shortest_edge": shortest, "longest_edge": longest})
        self.shortest, self.longest = shortest, longest

    def __call__(
        self, videos: Any, return_metadata: bool = False, video_metadata: Any = None, **_: Any
    ) -> BatchFeature:
        clips = videos if isinstance(videos, list) and np.asarray(videos[0]).ndim == 4 else [videos]
        rows, grids = zip(*(self.patches(np.asarray(clip)) for clip in clips), strict=True)
        patches = {"pixel_values_videos": torch.cat(rows), "video_grid_thw": torch.stack(grids)}
        if return_metadata:
            patches["video_metadata"] = video_metadata
        return BatchFeature(patches)

    def patches(self, frames: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, h, w, 3] uint8 -> [t * h' * w', 3 * 2 * 14 * 14], (t, h', w'); an odd last frame is shown twice."""
        x = torch.from_numpy(frames.copy()).permute(0, 3, 1, 2)
        side = self.patch_size * self.merge_size
        height, width = smart_resize(*x.shape[-2:], side, self.shortest, self.longest)
        if (height, width) != tuple(x.shape[-2:]):
            x = functional.interpolate(x.float(), (height, width), mode="bicubic", antialias=True)
            x = x.round().clamp(0, 255)
        x = torch.cat([x, x[-1:]]) if len(x) % 2 else x
        mean, std = (torch.tensor(value).view(3, 1, 1) for value in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
        x = (x.float() / 255 - mean) / std
        t, h, w = len(x) // 2, height // side, width // side
        p = self.patch_size
        x = x.view(t, 2, 3, h, 2, p, w, 2, p).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
        return x.reshape(t * h * w * 4, -1), torch.tensor([t, 2 * h, 2 * w])


class Qwen2VLProcessor(hf.Qwen2VLProcessor):  # type: ignore[misc]
    """The stock processor; only the check of its parts knows the class above (the stock check needs torchvision's base)."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if argument_name == "video_processor" and isinstance(argument, Qwen2VLVideoProcessor):
            return Qwen2VLVideoProcessor
        return super().check_argument_for_proper_class(argument_name, argument)
