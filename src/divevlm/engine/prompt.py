"""The prompt of a call: which tokens are text that guides selection, by the caller's masks, labels or generate()."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from divevlm.checks import require
from divevlm.models.base import Layout, View, Visual

IGNORED = -100  # the label of tokens that are not learnt
MASKS = ("prompt_mask", "visual_mask")
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "assistant_early_exit": ((None,), "None (the blocks that it leaves out have caches too)"),
    "prefill_chunk_size": ((None,), "None (an image can't be cut into chunks)"),
    "cache_implementation": (
        (None, "dynamic", "dynamic_full", "quantized", "offloaded"),
        "None, 'dynamic', 'quantized' or 'offloaded' (blocks hold different lengths)",
    ),
}


@dataclass(frozen=True)
class PromptMarks:
    """What a call of generate() or of the model says of its tokens.

    length       of generate(): tokens behind it are candidates or answers
    prompt_mask  [B, S] the text that is asked; for training with labels on every word
    visual_mask  [B, S] the visual tokens of `inputs_embeds`: bool (each run is an image), or the number of its image, from 1
    labels       [B, S]
    """

    length: int | None = None
    prompt_mask: Tensor | None = None
    visual_mask: Tensor | None = None
    labels: Tensor | None = None

    def text(self, present: Tensor, visual: Tensor, past: int, warn: Callable[[str], None]) -> Tensor:
        """[B, S] the text that guides selection. present, visual: [B, S]; past: how many positions came before

        By the caller's mask; else, of labelled samples, what is not to be learnt; else all text up to the end of the prompt.
        """
        text = present & ~visual
        batch, length = text.shape
        if self.prompt_mask is not None:
            mask = fitted("prompt_mask", self.prompt_mask, batch, length, past, self.length is not None)
            return text & mask.to(text.device).bool()
        if self.labels is not None:
            asked = text & (self.labels == IGNORED).to(text.device)
            silent = text.any(dim=1) & ~asked.any(dim=1)
            if bool(silent.any()):
                warn(
                    "labels cover every word of a sample, so its answer takes part in choosing tokens: "
                    "set those of the prompt to -100, or pass prompt_mask (True where the prompt is) to the model"
                )
            return torch.where(silent[:, None], text, asked)
        if self.length is not None:
            text = text & (torch.arange(past, past + length, device=text.device) < self.length)
        return text

    def needed(self, present: Tensor, visual: Tensor, past: int) -> Tensor:
        """[B, S] positions whose output is needed even if they are dropped: the last of each row and the last of the prompt
        (their logits are the next token), and the visual ones in front of a word that is learnt."""
        needed = present & (present.flip(1).long().cumsum(dim=1).flip(1) == 1)
        if self.length is not None and 0 < self.length - past <= present.shape[1]:
            last = self.length - past - 1  # candidates of assisted decoding stand behind it
            needed[:, last] |= present[:, last]
        if self.labels is not None:
            learnt = nn.functional.pad(self.labels != IGNORED, (0, 1))[:, 1:]
            needed = needed | (visual & present & learnt.to(needed.device))
        return needed

    def layouts(self, batch: int, length: int, past: int) -> list[Layout]:
        """By `visual_mask`. No grid is known: an image is one row of tokens."""
        assert self.visual_mask is not None
        mask = fitted("visual_mask", self.visual_mask, batch, length, past, self.length is not None).cpu()
        layouts = []
        for row in mask:
            numbers = row.long()
            if row.dtype == torch.bool:
                numbers = numbers * (numbers.diff(prepend=numbers.new_zeros(1)) == 1).cumsum(0)
            positions = numbers.nonzero()[:, 0]
            images, sizes = numbers[positions].unique_consecutive(return_counts=True)
            whole = len(images) == len(images.unique()) and bool((images > 0).all())
            require(whole, "visual_mask", images.tolist(), "numbers from 1, the tokens of an image behind one another")
            layouts.append(Layout(positions, [Visual((View(1, size),)) for size in sizes.tolist()]))
        return layouts


def prompt_of_generate(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PromptMarks:
    """Takes our own arguments out of those of generate(), and refuses what it can't do with a pruned cache."""
    settings = kwargs.get("generation_config") or model.generation_config
    for name, (allowed, instead) in REFUSED.items():
        value = kwargs.get(name, getattr(settings, name, None))
        require(value in allowed, name, value, f"{instead} under pruning")
    given = [kwargs.get(name) for name in ("attention_mask", "inputs_embeds", "input_ids", "inputs")]
    prompt = next((value for value in (*given, *args[:1]) if value is not None), None)
    length = prompt.shape[1] if isinstance(prompt, Tensor) and prompt.dim() > 1 else None
    return PromptMarks(length, **{name: checked_mask(name, kwargs.pop(name, None)) for name in MASKS})


def checked_mask(name: str, mask: Any) -> Tensor | None:
    if mask is None:
        return None
    ok = isinstance(mask, Tensor) and mask.dim() == 2 and not (mask.is_floating_point() or mask.is_complex())
    shown = (mask.dtype, tuple(mask.shape)) if isinstance(mask, Tensor) else type(mask).__name__
    require(ok, name, shown, "a bool or integer tensor [batch, length]")
    tensor: Tensor = mask
    return tensor


def fitted(name: str, mask: Tensor, batch: int, length: int, past: int, grows: bool) -> Tensor:
    """A mask of the caller's for a pass: of its tokens, or also of those that came before. -> [batch, length]

    Rows may be repeated (beams). grows: in generate(), where more tokens than the prompt's may come; those are False.
    """
    if past and mask.shape[1] > length:
        mask = mask[:, past:]
    long = mask.shape[1] == length or (grows and 0 < mask.shape[1] < length)
    fits = long and len(mask) > 0 and batch % len(mask) == 0
    require(fits, name, tuple(mask.shape), f"of shape {(batch, length)}")
    return nn.functional.pad(mask, (0, length - mask.shape[1])).repeat_interleave(batch // len(mask), dim=0)


def text_labels(labels: Any, ids: Tensor | None, tokens: Mapping[str, int], warn: Callable[[str], None]) -> Any:
    """Labels without those of visual tokens: a dropped token predicts nothing, and placeholders are nothing to learn."""
    shown = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
    fits = isinstance(labels, Tensor) and labels.dim() == 2 and (ids is None or labels.shape == ids.shape)
    require(fits, "labels", shown, "a tensor [batch, length], as long as input_ids")
    if ids is None:
        return labels
    visual = torch.isin(ids, torch.tensor(list(tokens.values()), device=ids.device)).to(labels.device)
    if bool((visual & (labels != IGNORED)).any()):
        warn("labels of visual tokens are ignored under pruning: dropped tokens predict nothing")
    return labels.masked_fill(visual, IGNORED)
