"""The embedded models: small trained vision-language models, the scenes they were trained on, and questions about them.

    model, processor = divevlm_tiny.load("llava")
    for sample in divevlm_tiny.questions("validation", 100): ...
    model, processor = divevlm_tiny.load("qwen2vl")            # pictures of several SIZES, and clips
    for sample in divevlm_tiny.clip_questions("validation", 100): ...

Needs numpy and pillow beside torch and transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divevlm_tiny.shipped import available, load
    from divevlm_tiny.splits import SIZES, ClipSample, Sample, clip_questions, questions

__all__ = ["SIZES", "ClipSample", "Sample", "available", "clip_questions", "load", "questions"]

_LAZY = {
    "SIZES": "divevlm_tiny.splits",
    "ClipSample": "divevlm_tiny.splits",
    "clip_questions": "divevlm_tiny.splits",
    "Sample": "divevlm_tiny.splits",
    "available": "divevlm_tiny.shipped",
    "load": "divevlm_tiny.shipped",
    "questions": "divevlm_tiny.splits",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'divevlm_tiny' has no attribute {name!r}")
