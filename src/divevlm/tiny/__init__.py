"""The embedded models: small trained vision-language models, the scenes they were trained on, and questions about them.

    model, processor = divevlm.tiny.load("llava")
    for sample in divevlm.tiny.questions("validation", 100): ...
    model, processor = divevlm.tiny.load("qwen2vl")            # pictures of several SIZES, and clips
    for sample in divevlm.tiny.clip_questions("validation", 100): ...

Needs numpy and pillow beside torch and transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divevlm.tiny.shipped import available, load
    from divevlm.tiny.splits import SIZES, ClipSample, Sample, clip_questions, questions

__all__ = ["SIZES", "ClipSample", "Sample", "available", "clip_questions", "load", "questions"]

_LAZY = {
    "SIZES": "divevlm.tiny.splits",
    "ClipSample": "divevlm.tiny.splits",
    "clip_questions": "divevlm.tiny.splits",
    "Sample": "divevlm.tiny.splits",
    "available": "divevlm.tiny.shipped",
    "load": "divevlm.tiny.shipped",
    "questions": "divevlm.tiny.splits",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'divevlm.tiny' has no attribute {name!r}")
