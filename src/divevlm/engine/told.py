"""What the caller says of the tokens beside the model's own arguments."""

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
class Told:
    """By the call of generate(), or of the model.

    prompt_length  of generate(): tokens behind it are candidates or answers
    prompt_mask    [B, S] the text that is asked; for training with labels on every word
    visual_mask    [B, S] the visual tokens of `inputs_embeds`: bool (each run is an image), or the number of its image, from 1
    labels         [B, S]
    """

    prompt_length: int | None = None
    prompt_mask: Tensor | None = None
    visual_mask: Tensor | None = None
    labels: Tensor | None = None


def told_by_generate(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Told:
    """Takes our own arguments out of those of generate(), and refuses what it can't do with a pruned cache."""
    settings = kwargs.get("generation_config") or model.generation_config
    for name, (allowed, instead) in REFUSED.items():
        value = kwargs.get(name, getattr(settings, name, None))
        require(value in allowed, name, value, f"{instead} under pruning")
    prompt = kwargs.get("attention_mask")
    for other in (kwargs.get("inputs_embeds"), kwargs.get("input_ids"), kwargs.get("inputs"), *args[:1]):
        prompt = other if prompt is None else prompt
    length = prompt.shape[1] if isinstance(prompt, Tensor) and prompt.dim() > 1 else None
    return Told(length, **{name: mask_of(name, kwargs.pop(name, None)) for name in MASKS})


def mask_of(name: str, mask: Any) -> Tensor | None:
    if mask is None:
        return None
    ok = isinstance(mask, Tensor) and mask.dim() == 2 and not (mask.is_floating_point() or mask.is_complex())
    shown = (mask.dtype, tuple(mask.shape)) if isinstance(mask, Tensor) else type(mask).__name__
    require(ok, name, shown, "a bool or integer tensor [batch, length]")
    tensor: Tensor = mask
    return tensor


def told_layouts(mask: Tensor, batch: int, length: int, came: int, grows: bool) -> list[Layout]:
    """Of embeddings whose visual tokens the caller names. No grid is known: an image is one row of tokens."""
    mask = repeated("visual_mask", mask, batch, length, came, grows).cpu()
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


def repeated(name: str, mask: Tensor, batch: int, length: int, came: int, grows: bool) -> Tensor:
    """A mask of the caller's for a pass: of its tokens, or also of those that came before. -> [batch, length]

    Rows may be repeated (beams). grows: in generate(), where more tokens than the prompt's may come; those are False.
    """
    if came and mask.shape[1] > length:
        mask = mask[:, came:]
    long = mask.shape[1] == length or (grows and 0 < mask.shape[1] < length)
    fits = long and len(mask) > 0 and batch % len(mask) == 0
    require(fits, name, tuple(mask.shape), f"of shape {(batch, length)}")
    return nn.functional.pad(mask, (0, length - mask.shape[1])).repeat_interleave(batch // len(mask), dim=0)


def unlearnt(labels: Any, ids: Tensor | None, tokens: Mapping[str, int], warn: Callable[[str], None]) -> Any:
    """Labels without those of visual tokens: a dropped token predicts nothing, and placeholders are nothing to learn."""
    shown = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
    fits = isinstance(labels, Tensor) and labels.dim() == 2 and (ids is None or labels.shape == ids.shape)
    require(fits, "labels", shown, "a tensor [batch, length], as long as input_ids")
    if ids is None:
        return labels
    visual = _visual(ids, tokens).to(labels.device)
    if bool((visual & (labels != IGNORED)).any()):
        warn("labels of visual tokens are ignored under pruning: dropped tokens predict nothing")
    return labels.masked_fill(visual, IGNORED)


def _visual(ids: Tensor, tokens: Mapping[str, int]) -> Tensor:
    """[B, S] bool: placeholders of images and videos."""
    return torch.isin(ids, torch.tensor(list(tokens.values()), device=ids.device))
