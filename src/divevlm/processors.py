"""Processors by path or id, also where what only videos need is missing (torchvision, SmolVLM's num2words)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import AutoProcessor, processing_utils, video_processing_utils
from transformers.models.auto.video_processing_auto import AutoVideoProcessor
from transformers.models.smolvlm import processing_smolvlm
from transformers.utils import is_torchvision_available

BASE = processing_utils.MODALITY_TO_BASE_CLASS_MAPPING["video_processor"]  # what processors want this part to be


class NoVideos(video_processing_utils.BaseVideoProcessor):  # type: ignore[misc]
    """Stands where the checkpoint's video processor would."""

    model_input_names: tuple[str, ...] = ()
    num_frames = fps = None  # SmolVLM's processor looks at them

    def __init__(self) -> None:
        """Without settings: nothing is ever processed."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ValueError("videos need torchvision, which this Python lacks: pip install torchvision")


def processor_of(where: Any, **options: Any) -> Any:
    """As AutoProcessor makes it; without torchvision, one that takes pictures and refuses videos."""
    with ExitStack() as stack:
        if not is_torchvision_available():
            real = getattr(video_processing_utils, BASE)
            stack.enter_context(_instead(processing_utils.transformers_module, BASE, real))
            stack.enter_context(_instead(AutoVideoProcessor, "from_pretrained", lambda *_, **__: NoVideos()))
        if processing_smolvlm.num2words is None:  # spells the number of a video's frames, but is asked for at once
            stack.enter_context(_instead(processing_smolvlm, "num2words", str))
        return AutoProcessor.from_pretrained(where, **options)


@contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While it lasts, the owner has another attribute; afterwards exactly what it had itself."""
    had, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
