"""What a forward pass brings into the language model: its visual tokens, its text, and what came before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.engine.caches import is_pruned
from divevlm.engine.features import Encoded, Features
from divevlm.engine.prompt import PromptMarks
from divevlm.engine.setup import Setup
from divevlm.engine.vision import joined, tokens_of_rows
from divevlm.methods.base import Vision
from divevlm.models.base import Family, Layout

PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}


@dataclass(frozen=True)
class Prefill:
    """The input of a pass that brings visual tokens."""

    layouts: Sequence[Layout]  # the visual tokens of each row
    present: Tensor  # [B, S] False for padding
    prompt: Tensor  # [B, S] the text that guides selection: no padding, no answers
    needed: Tensor  # [B, S] positions whose output is needed, whether they stay or not
    ids: Tensor | None = None  # [B, S]
    embeds: Tensor | None = None  # [B, S, d] what entered the first block, where the method asks for it
    vision: Vision | None = None  # of all visual tokens of the batch, likewise
    vision_rows: Sequence[Tensor] = ()  # which of them are each row's


class Reader:
    """Reads the input of a pass off the arguments of the model and of its language model."""

    def __init__(
        self, model: Any, family: Family, setup: Setup, features: Features, warn: Callable[[str], None]
    ) -> None:
        self.model, self.family, self.setup, self.features, self.warn = model, family, setup, features, warn

    def read(
        self, outer: Mapping[str, Any], inner: Mapping[str, Any], prompt: PromptMarks
    ) -> tuple[Prefill | None, Tensor, Tensor | None] | None:
        """The prefill, its columns that are present [B, S] and those before it [B, P]; None: nothing to prune.

        outer: arguments of the model without its head, inner: of its language model
        """
        cache, embeds = inner.get("past_key_values"), inner.get("inputs_embeds")
        batch, length = (inner["input_ids"] if embeds is None else embeds).shape[:2]
        if outer.get("input_ids") is not None and outer["input_ids"].shape != (batch, length):
            outer = {}  # of a call that was interrupted: this one is of the language model alone
        encoded = self._encoded(outer)
        before = cache.get_seq_length() if cache is not None else 0
        layouts = self._layouts(outer, encoded, prompt, (batch, length), before)
        if layouts is None and not is_pruned(cache):
            return None
        if embeds is None:
            embeds = self.setup.text.get_input_embeddings()(inner["input_ids"])
        present, past = self._columns(inner.get("attention_mask"), cache, embeds, before)
        if layouts is None:
            return None, present, past
        ids, kinds = outer.get("input_ids"), self.family.token_ids(self.model.config)
        visual = _marked(layouts, present)
        parts = {kind: images.vision for kind, images in encoded.items() if images.vision is not None}
        prefill = Prefill(
            layouts,
            present,
            prompt.text(present, visual, before, self.warn),
            prompt.needed(present, visual, before),
            ids,
            embeds if self.setup.method.needs.embeds else None,
            joined(parts) if parts else None,
            tokens_of_rows(parts, ids.cpu(), kinds) if parts and ids is not None else (),
        )
        return prefill, present, past

    def _encoded(self, outer: Mapping[str, Any]) -> dict[str, Encoded]:
        """The images and videos of this pass, by kind."""
        encoded = {}
        for kind, features in encoder_outputs(outer).items():
            encoded[kind] = self.features.of(kind, features)
            allowed = "made by the model while the method is attached (the last ones of this thread, if copied)"
            require(encoded[kind] is not None, "mm_encoder_outputs", "features from elsewhere", allowed)
        for kind, name in PIXELS.items():
            if outer.get(name) is not None and kind not in encoded:
                encoded[kind] = self.features.latest(kind)
        return {kind: images for kind, images in encoded.items() if images is not None}

    def _layouts(
        self,
        outer: Mapping[str, Any],
        encoded: Mapping[str, Encoded],
        prompt: PromptMarks,
        size: tuple[int, int],
        before: int,
    ) -> Sequence[Layout] | None:
        """Of each row; None where this pass brings no visual token. before: how many positions came before"""
        ids = outer.get("input_ids")
        brings = bool(encoded) or has_pixels(outer)
        if ids is None and outer.get("inputs_embeds") is not None:
            if prompt.visual_mask is not None:
                method = self.setup.method
                in_tower = method.needs.vision or self.features.reducer is not None
                allowed = f"pixels for {method.name}, which looks into the vision tower"
                require(not in_tower, "inputs_embeds", "embeddings", allowed)
                return prompt.layouts(*size, before)
            allowed = "given under pruning, or visual_mask beside inputs_embeds: they tell where the visual tokens are"
            require(not brings, "input_ids", None, allowed)
            return None
        if brings:
            allowed = "left out: input_ids tell the same"
            require(prompt.visual_mask is None, "visual_mask", "a mask beside input_ids", allowed)
            visuals = {kind: images.visuals for kind, images in encoded.items()}
            return self.family.layouts(self.model, ids, visuals)  # type: ignore[arg-type]
        if ids is not None and ids.shape[1] > 1:
            # candidates of prompt lookup may be anything
            end = None if prompt.length is None else max(0, prompt.length - before)
            kinds = self.family.token_ids(self.model.config).items()
            bare = [kind for kind, token in kinds if bool((ids[:, :end] == token).any())]
            given = f"visual tokens without their {' and '.join(bare)}"
            require(not bare, "input_ids", given, "given with the pixels")
        return None

    def _columns(self, mask: Any, cache: Any, embeds: Tensor, before: int) -> tuple[Tensor, Tensor | None]:
        """present: [B, S], past: [B, P]"""
        flat = mask is None or (isinstance(mask, Tensor) and mask.dim() == 2)
        given = getattr(mask, "shape", type(mask).__name__)
        require(flat, "attention_mask", given, "two-dimensional [batch, length] under pruning")
        static = getattr(cache, "is_compileable", False)
        allowed = "a dynamic cache: blocks hold different lengths"
        require(not static, "past_key_values", type(cache).__name__, allowed)
        ones = torch.ones(len(embeds), before + embeds.shape[1], dtype=torch.bool, device=embeds.device)
        present = ones if mask is None else mask.bool().to(embeds.device)
        if is_pruned(cache):
            theirs, ours = cache.layers[0].pruner, self.setup.pruner
            require(ours.goes_on_with(theirs), "past_key_values", str(theirs), f"pruned by the same cuts ({ours})")
        require(present.shape == ones.shape, "attention_mask", tuple(present.shape), f"of shape {tuple(ones.shape)}")
        if is_pruned(cache) and mask is not None:
            known = bool((present[:, :before] == cache.layers[0].present.to(present.device)).all())
            allowed = "the same over the tokens of a pruned cache as when they came: nothing else is known of them"
            require(known, "attention_mask", "another one", allowed)
        return present[:, before:], present[:, :before] if before else None


def encoder_outputs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Features that were encoded before the model was called, by kind."""
    given = arguments.get("mm_encoder_outputs")
    if given is None or isinstance(given, Mapping):
        return {kind: features for kind, features in (given or {}).items() if features is not None}
    return {"image": given}


def has_pixels(arguments: Mapping[str, Any]) -> bool:
    return any(arguments.get(name) is not None for name in PIXELS.values())


def _marked(layouts: Sequence[Layout], like: Tensor) -> Tensor:
    """[B, S] bool: the visual tokens."""
    visual = torch.zeros_like(like)
    for row, layout in enumerate(layouts):
        visual[row, layout.positions.to(like.device)] = True
    return visual
