"""One forward pass of the language model, as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from divevlm.engine.caches import Conversation
from divevlm.methods.base import Vision
from divevlm.models.base import Layout


@dataclass
class Stage:
    """The sequence after a cut, in one forward pass."""

    index: Tensor | None  # [B, Q] positions in the full sequence; None = all of them
    valid: Tensor  # [B, Q] False for padding
    arguments: dict[str, Any] = field(default_factory=dict)  # what blocks get instead of the model's own


@dataclass
class Deepstack:
    """Features that the model adds to its visual rows after each of the first blocks (Qwen3-VL)."""

    mask: Tensor  # [B, S] the visual rows
    features: list[Tensor]  # one [visual rows, d] a block

    def add(self, hidden: Tensor, block: int, index: Tensor | None) -> Tensor:
        """hidden: what block number `block` put out, of the full sequence or of the positions `index`."""
        if not 0 <= block < len(self.features):
            return hidden
        extra = hidden.new_zeros(*self.mask.shape, hidden.shape[-1])
        extra[self.mask.to(hidden.device)] = self.features[block].to(hidden.device, hidden.dtype)
        return hidden + (extra if index is None else take(extra, index))


@dataclass
class Call:
    layouts: list[Layout] | None  # None = no visual token in this pass
    present: Tensor  # [B, S] False for padding
    past: Tensor | None  # [B, P] the same of what came before; None = nothing did
    answer: Tensor | None  # [B, S] True for tokens that are answers, not prompt (teacher forcing)
    ids: Tensor | None = None  # [B, S]
    embeds: Tensor | None = None  # [B, S, d] what entered the first block, where the method asks for it
    vision: Vision | None = None  # of all visual tokens of the batch, likewise
    vision_rows: list[Tensor] = field(default_factory=list)  # which of them are each row's
    places: Tensor | None = (
        None  # [B, S] the order of what is left: merged rows may stand elsewhere than their positions
    )
    before: tuple[Tensor, Any] | None = (
        None  # what went into the block before the next cut, and its position embeddings
    )
    stages: list[Stage] = field(default_factory=list)  # after each cut so far
    samples: list[Any] = field(default_factory=list)
    selection_seconds: float = 0.0
    deep: Deepstack | None = None
    conversation: Conversation | None = None
    cache: Any = None

    def prompt(self, row: int) -> Tensor:
        """[M] positions of the text that is asked, without answers and padding."""
        assert self.layouts is not None
        text = self.present[row].clone()
        text[self.layouts[row].positions] = False
        if self.answer is not None:
            text &= ~self.answer[row]
        return text.nonzero()[:, 0]

    @property
    def index(self) -> Tensor | None:
        """[B, Q] which positions of the full sequence are left; None = all."""
        return self.stages[-1].index if self.stages else None

    def rows(self) -> Tensor:
        """[B, S] where each position of the full sequence is in the sequence as it is now (anything for those dropped)."""
        batch, length = self.present.shape
        here = torch.arange(length, device=self.present.device).expand(batch, -1)
        if self.index is None:
            return here
        return torch.zeros_like(here).scatter_(1, self.index, here[:, : self.index.shape[1]])


def left_aligned(kept: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The kept positions of each row in the order of their places, padded on the left to one length.

    kept: [B, S] bool, places: [B, S] -> index, valid: [B, Q]
    """
    counts = kept.sum(dim=1)
    length = int(counts.max())
    order = torch.where(kept, places, places - kept.shape[1]).argsort(dim=1, stable=True)  # the kept ones come last
    index = order[:, kept.shape[1] - length :]
    return index, kept.gather(1, index)


def take(z: Tensor, index: Tensor) -> Tensor:
    """Rows of the sequence dimension (the last but one). z: [..., B or 1, S, d], index: [B, Q]"""
    index = index.to(z.device)[..., None]
    z = z.expand(*z.shape[:-3], index.shape[0], *z.shape[-2:])
    return z.gather(-2, index.expand(*z.shape[:-2], index.shape[1], z.shape[-1]))
