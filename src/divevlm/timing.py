"""How long a generate() takes, part by part."""

from __future__ import annotations

import time
from typing import Any

import torch

from divevlm.models import family_of


class Clock:
    """`with Clock(model) as clock: model.generate(...)`; then, in seconds:

    prefill  the language model's first pass, with the choice of tokens
    first    until the first token: the tower, the prefill
    total    all of it
    """

    def __init__(self, model: Any) -> None:
        family = family_of(model)
        self.device, text = model.device, family.at(model, family.text)
        self.prefill = self.first = self.total = self._prefill_began = 0.0
        self._start = self._now()
        self._handles = [
            text.register_forward_pre_hook(self._text_begins),
            text.register_forward_hook(self._text_ends),
            model.register_forward_hook(self._model_ends),
        ]

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *_: object) -> None:
        self.total = self._now() - self._start
        for handle in self._handles:
            handle.remove()

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _text_begins(self, *_: Any) -> None:
        self._prefill_began = self._prefill_began or self._now()

    def _text_ends(self, *_: Any) -> None:
        self.prefill = self.prefill or self._now() - self._prefill_began

    def _model_ends(self, *_: Any) -> None:
        self.first = self.first or self._now() - self._start
