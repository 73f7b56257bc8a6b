"""Tiny random models of every supported family, with real processors, built on the spot from a seed.

    entry = build("qwen2_vl")
    batch = inputs(entry, [{"text": "what is this ?", "images": [picture(0, 112, 84)]}])
    entry.model.generate(**batch, max_new_tokens=5, do_sample=False)

Nothing is downloaded and torchvision is not needed. What a family's processor can't do is listed in `inputs`.
"""

from .entry import FAMILIES, VIDEO_FAMILIES, Entry, build
from .prompt import inputs
from .scenes import clip, picture

__all__ = ["FAMILIES", "VIDEO_FAMILIES", "Entry", "build", "clip", "inputs", "picture"]
