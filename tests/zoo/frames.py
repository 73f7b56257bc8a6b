"""Video processors without torchvision.

The video processors of transformers do their frame sampling, grids, patches and padding in torch, and call torchvision for three
operations only. `Frames` supplies these three; `without_torchvision(SomeVideoProcessor)` puts it beneath the real class.
Two real modules (qwen2_vl, internvl) can't be imported without torchvision: `Qwen2Frames` and `Frames` itself stand in.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional
from transformers import processing_utils, video_processing_utils
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD, PILImageResampling, SizeDict
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_processing_utils import BaseVideoProcessor

BASE = processing_utils.MODALITY_TO_BASE_CLASS_MAPPING["video_processor"]


class Frames(BaseVideoProcessor):
    """Videos are uint8 [..., 3, H, W]; what comes out is float32 `pixel_values_videos` [videos, T, 3, H', W']."""

    image_mean, image_std = OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
    do_resize = do_rescale = do_normalize = True
    resample = PILImageResampling.BICUBIC
    do_sample_frames = False

    def resize(self, image: torch.Tensor, size: SizeDict, resample=None, antialias: bool = True, **_) -> torch.Tensor:
        height, width = image.shape[-2:]
        if size.shortest_edge:
            scale = size.shortest_edge / min(height, width)
            target = (int(height * scale), int(width * scale))
        else:
            target = (size.height, size.width)
        flat = functional.interpolate(image.flatten(0, -4).float(), target, mode="bicubic", antialias=antialias)
        return flat.round().clamp(0, 255).to(image.dtype).unflatten(0, image.shape[:-3])

    def normalize(self, image: torch.Tensor, mean, std, **_) -> torch.Tensor:
        mean, std = (torch.as_tensor(value, dtype=image.dtype).view(-1, 1, 1) for value in (mean, std))
        return (image - mean) / std

    def center_crop(self, image: torch.Tensor, size: SizeDict, **_) -> torch.Tensor:
        top, left = (image.shape[-2] - size.height) // 2, (image.shape[-1] - size.width) // 2
        return image[..., top : top + size.height, left : left + size.width]

    def convert_to_rgb(self, video: torch.Tensor) -> torch.Tensor:
        return video


@contextmanager
def taken_by_processors() -> Iterator[None]:
    """While it lasts, a stock processor can be built on them: it looks up their base, which is missing without torchvision."""
    with pytest.MonkeyPatch.context() as patch:
        real = getattr(video_processing_utils, BASE)
        patch.setattr(processing_utils.transformers_module, BASE, real, raising=False)
        yield


def without_torchvision(real: type[BaseVideoProcessor]) -> type[BaseVideoProcessor]:
    return type(real.__name__, (real, Frames), {})


class Qwen2Frames(Qwen3VLVideoProcessor, Frames):
    """Qwen2-VL and Qwen2.5-VL: the patches of Qwen3-VL, but the pixel limits hold for a frame and not for the whole clip."""

    image_mean, image_std = OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
    patch_size = 14
    do_sample_frames = False

    def resize(self, videos: torch.Tensor, size: SizeDict, resample, factor: int | None = None, **_) -> torch.Tensor:
        if factor is not None:  # older versions come with the size worked out
            height, width = smart_resize(*videos.shape[-2:], factor, size.shortest_edge, size.longest_edge)
            size = SizeDict(height=height, width=width)
        return Frames.resize(self, videos, size)
