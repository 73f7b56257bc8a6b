"""Which images and videos a model's visual features show, with the signals of the vision tower.

Generation encodes before it calls the model, and only get_image_features and get_video_features see the sizes of the images:
these are noted on their output. Others' hooks (accelerate) rebuild outputs: then the features themselves are recognised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from divevlm.engine.patches import Patch, bound
from divevlm.engine.tower_reduction import TowerReducer
from divevlm.engine.vision import Encoding, Tower
from divevlm.methods.base import Method, Vision
from divevlm.models.base import Family, Visual

NOTE = "_divevlm"  # the attribute of an output under which it is noted what the output shows


@dataclass(frozen=True)
class Encoded:
    """Images or videos of a call of get_image_features or get_video_features."""

    visuals: list[Visual]
    vision: Vision | None  # signals of the tower, where the method asks for them
    marks: Tensor | None  # a few rows of the features, to recognise them by


class Encodings(threading.local):
    def __init__(self) -> None:
        self.encoding: Encoding | None = None  # under way in this thread
        self.last: dict[str, Encoded] = {}  # of this thread, by kind


class Features:
    def __init__(self, family: Family, model: Any, method: Method) -> None:
        self.family, self.model = family, model
        self.tower = Tower(family, model, method.needs.vision) if method.needs.vision else None
        self.reducer = TowerReducer(family, model, method) if method.in_tower(family.plain) else None
        self._local = Encodings()

    def attach(self, stack: ExitStack, base: nn.Module) -> None:
        for kind in ("image", "video"):
            if hasattr(base, f"get_{kind}_features"):
                stack.callback(Patch(base, f"get_{kind}_features", self._watch(kind)).undo)
        for part in (self.tower, self.reducer):
            if part is not None:
                part.attach(stack, lambda: self._local.encoding)
        stack.callback(self._forget)

    def _forget(self) -> None:
        """Of all threads."""
        self._local = Encodings()

    def forget(self) -> None:
        """What this thread has encoded: its features know themselves what they show."""
        self._local.encoding = None
        self._local.last.clear()

    def expect(self, kind: str) -> None:
        """This thread is about to encode: what it encoded before does not count."""
        self._local.last.pop(kind, None)

    def latest(self, kind: str) -> Encoded | None:
        """Of this thread's last call, in the pass that is under way: it is needed once."""
        return self._local.last.pop(kind, None)

    def of(self, kind: str, features: Any) -> Encoded | None:
        """What these features show; None for features from elsewhere."""
        noted: Encoded | None = getattr(features, NOTE, None)
        if noted is None:
            last, marks = self._local.last.get(kind), _marks(features)
            return last if last is not None and _alike(last.marks, marks) else None
        blind = self.tower is not None and noted.vision is None
        reduced = noted.vision is not None and noted.vision.owner is not None
        return None if blind or reduced != (self.reducer is not None) else noted

    def _watch(self, kind: str) -> Callable[..., Any]:
        def watched(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            local = self._local
            if local.encoding is not None:  # some families encode videos through the method for images
                return original(*args, **kwargs)
            local.encoding = Encoding()
            try:
                features = original(*args, **kwargs)
                given = bound(original, args, kwargs)
                vision = None if self.tower is None else self.tower.tokens(kind, given, local.encoding)
                if local.encoding.reduced is not None:
                    vision = local.encoding.reduced.tokens()
            finally:
                local.encoding = None
            encoded = Encoded(self.family.visuals(self.model, kind, given), vision, _marks(features))
            local.last[kind] = encoded
            if isinstance(features, ModelOutput):
                setattr(features, NOTE, encoded)
            return features

        return watched


def _marks(features: Any) -> Tensor | None:
    """[rows, d] a few rows of the first and of the last image."""
    pooled = getattr(features, "pooler_output", None)
    if pooled is None or not len(pooled):
        return None
    parts = [part.detach().reshape(-1, part.shape[-1]) for part in (pooled[0], pooled[-1])]
    return torch.cat([part[begin:][:1] for part in parts for begin in (0, len(part) // 2, -1)])


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and torch.equal(a, b.to(a.device, a.dtype))
