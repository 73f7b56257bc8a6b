"""From samples to the keyword arguments of a model."""

from itertools import chain

import numpy as np
from transformers import BatchFeature

from divevlm.models import family_of

from .entry import Entry

FPS = 2.0


def inputs(entry: Entry, samples: list[dict], padding_side: str = "left") -> BatchFeature:
    """A padded batch; a sample is {"text": ..., "images": [...], "videos": [...]}, images and videos optional.

    A sample reads images, then videos, then text. Images and clips of any size, several in a sample, and samples without
    any may stand in one batch, in every family, except for what these processors can't do:

    - llava, llava_576, llava_next, idefics3: no videos.
    - llava_next_video, llava_onevision, internvl: all clips of a batch must have the same number of frames.
    - smolvlm: images and videos can't stand in one batch (both are called `pixel_values`). Clips may differ in their number
      of frames, but every prompt then names the largest, so such a batch is not what its samples are alone.
    - llava_onevision: an image alone in its sample is cut into views; among several, each is one view.
    - llava, llava_576, and the clips of llava_next_video are cropped to a square; the tiles of internvl, idefics3 and smolvlm
      and the clips of llava_onevision, internvl and smolvlm are squeezed to squares.
    """
    processor, family = entry.processor, family_of(entry.model)
    texts = [
        processor.apply_chat_template(
            [_turn(sample)], chat_template=processor.chat_template, add_generation_prompt=True, tokenize=False
        )
        for sample in samples
    ]
    visual = {}
    images = [sample.get("images", []) for sample in samples]
    videos = [sample.get("videos", []) for sample in samples]
    if any(images):
        visual["images"] = images if family.nested_images else list(chain(*images))
    if any(videos):
        visual["videos"] = videos if family.nested_videos else list(chain(*videos))
        visual["video_metadata"] = [_metadata(video) for video in chain(*videos)]
    return processor(text=texts, padding=True, padding_side=padding_side, return_tensors="pt", **visual)


def _turn(sample: dict) -> dict:
    content = [{"type": "image"} for _ in sample.get("images", [])]
    content += [{"type": "video"} for _ in sample.get("videos", [])]
    content += [{"type": "text", "text": sample["text"]}]
    return {"role": "user", "content": content}


def _metadata(video: np.ndarray) -> dict:
    frames = len(video)
    return {
        "total_num_frames": frames,
        "fps": FPS,
        "duration": frames / FPS,
        "frames_indices": list(range(frames)),
        "height": video.shape[1],
        "width": video.shape[2],
    }
