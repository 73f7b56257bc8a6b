"""Where a prefill begins: read off what a model was called with, and what the caller said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from divevlm.checks import require
from divevlm.engine.caches import is_pruned
from divevlm.engine.features import Encoded, Features
from divevlm.engine.prefill import Prefill
from divevlm.engine.setup import Setup
from divevlm.engine.told import IGNORED, Told, repeated, told_layouts
from divevlm.engine.vision import joined, per_row
from divevlm.models.base import Family, Layout

PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}


class Entry:
    """Reads a pass off the arguments of the model and of its language model."""

    def __init__(
        self, model: Any, family: Family, setup: Setup, features: Features, warn: Callable[[str], None]
    ) -> None:
        self.model, self.family, self.setup, self.features, self.warn = model, family, setup, features, warn

    def read(
        self, outer: Mapping[str, Any], inner: Mapping[str, Any], told: Told
    ) -> tuple[Prefill | None, Tensor, Tensor | None] | None:
        """What the pass prefills, its columns that are present [B, S] and those before it [B, P]; None: nothing to prune.

        outer: arguments of the model without its head, inner: of its language model
        """
        cache, embeds = inner.get("past_key_values"), inner.get("inputs_embeds")
        batch, length = (inner["input_ids"] if embeds is None else embeds).shape[:2]
        encoded = self._encoded(outer)
        came = cache.get_seq_length() if cache is not None else 0
        layouts = self._layouts(outer, encoded, told, (batch, length), came)
        if layouts is None and not is_pruned(cache):
            return None
        if embeds is None:
            embeds = self.setup.text.get_input_embeddings()(inner["input_ids"])
        present, past = self._columns(inner.get("attention_mask"), cache, embeds)
        if layouts is None:
            return None, present, past
        ids, kinds = outer.get("input_ids"), self.family.token_ids(self.model.config)
        visual = _marked(layouts, present)
        parts = {kind: made.vision for kind, made in encoded.items() if made.vision is not None}
        sizes = {kind: len(part.tile) for kind, part in parts.items()}
        prefill = Prefill(
            layouts,
            present,
            self._prompt(present, visual, past, told),
            _needed(present, visual, told, came),
            ids,
            embeds if self.setup.method.needs.embeds else None,
            joined(parts) if parts else None,
            per_row(sizes, ids.cpu(), kinds) if parts and ids is not None else (),
        )
        return prefill, present, past

    def _encoded(self, outer: Mapping[str, Any]) -> dict[str, Encoded]:
        """The images and videos of this pass."""
        found = {}
        for kind, features in features_of(outer).items():
            found[kind] = self.features.of(kind, features)
            allowed = "made by the model while the method is attached (the last ones of this thread, if copied)"
            require(found[kind] is not None, "mm_encoder_outputs", "features from elsewhere", allowed)
        for kind, name in PIXELS.items():
            if outer.get(name) is not None and kind not in found:
                found[kind] = self.features.made(kind)
        return {kind: made for kind, made in found.items() if made is not None}

    def _layouts(
        self, outer: Mapping[str, Any], encoded: Mapping[str, Encoded], told: Told, size: tuple[int, int], came: int
    ) -> Sequence[Layout] | None:
        """Of each row; None where this pass brings no visual token. came: how many positions came before"""
        ids, kinds = outer.get("input_ids"), self.family.token_ids(self.model.config)
        pixels = any(outer.get(name) is not None for name in PIXELS.values())
        if ids is None and outer.get("inputs_embeds") is not None:
            if told.visual_mask is not None:
                needs = self.setup.method.needs.vision or self.features.thinner is not None
                name = self.setup.method.name
                require(
                    not needs, "inputs_embeds", "embeddings", f"pixels for {name}, which looks into the vision tower"
                )
                return told_layouts(told.visual_mask, *size, came, told.prompt_length is not None)
            allowed = "given under pruning, or visual_mask beside inputs_embeds: they tell where the visual tokens are"
            require(not (pixels or encoded), "input_ids", None, allowed)
            return None
        if encoded or pixels:
            require(
                told.visual_mask is None, "visual_mask", "a mask beside input_ids", "left out: input_ids tell the same"
            )
            visuals = {kind: made.visuals for kind, made in encoded.items()}
            return self.family.layouts(self.model, ids, visuals)  # type: ignore[arg-type]
        if ids is not None and ids.shape[1] > 1:
            # candidates of prompt lookup may be anything
            end = None if told.prompt_length is None else max(0, told.prompt_length - came)
            strays = [kind for kind, token in kinds.items() if bool((ids[:, :end] == token).any())]
            what = f"visual tokens without their {' and '.join(strays)}"
            require(not strays, "input_ids", what, "given with the pixels")
        return None

    def _columns(self, mask: Any, cache: Any, embeds: Tensor) -> tuple[Tensor, Tensor | None]:
        """present: [B, S], past: [B, P]"""
        flat = mask is None or (isinstance(mask, Tensor) and mask.dim() == 2)
        shown = getattr(mask, "shape", type(mask).__name__)
        require(flat, "attention_mask", shown, "two-dimensional [batch, length] under pruning")
        if cache is not None:
            static = getattr(cache, "is_compileable", False)
            allowed = "a dynamic cache: blocks hold different lengths"
            require(not static, "past_key_values", type(cache).__name__, allowed)
        if is_pruned(cache):
            before, now = cache.layers[0].pruner, self.setup.pruner
            same = (before.cuts, before.positions) == (now.cuts, now.positions)
            require(same, "past_key_values", str(before), f"pruned by the same cuts ({now})")
        batch, length = embeds.shape[:2]
        past = cache.get_seq_length() if cache is not None else 0
        ones = torch.ones(batch, past + length, dtype=torch.bool, device=embeds.device)
        present = ones if mask is None else mask.bool().to(embeds.device)
        require(present.shape == ones.shape, "attention_mask", tuple(present.shape), f"of shape {tuple(ones.shape)}")
        if is_pruned(cache) and mask is not None:
            shown = cache.layers[0].shown
            known = bool((present[:, :past] == shown.to(present.device)).all())
            allowed = "the same over the tokens of a pruned cache as when they came: nothing else is known of them"
            require(known, "attention_mask", "another one", allowed)
        return present[:, past:], present[:, :past] if past else None

    def _prompt(self, present: Tensor, visual: Tensor, past: Tensor | None, told: Told) -> Tensor:
        """[B, S] the text that the method listens to.

        By the caller's mask; else, of labelled samples, what is not to be learnt; else all text up to the end of the prompt.
        """
        text = present & ~visual
        batch, length = text.shape
        if told.prompt_mask is not None:
            begin = 0 if past is None else past.shape[1]
            grows = told.prompt_length is not None
            mask = repeated("prompt_mask", told.prompt_mask, batch, length, begin, grows)
            return text & mask.to(text.device).bool()
        if told.labels is not None:
            asked = text & (told.labels == IGNORED).to(text.device)
            silent = text.any(dim=1) & ~asked.any(dim=1)
            if bool(silent.any()):
                self.warn(
                    "labels cover every word of a sample, so its answer takes part in choosing tokens: "
                    "set those of the prompt to -100, or pass prompt_mask (True where the prompt is) to the model"
                )
            return torch.where(silent[:, None], text, asked)
        if told.prompt_length is not None:
            begin = 0 if past is None else past.shape[1]
            text = text & (torch.arange(begin, begin + length, device=text.device) < told.prompt_length)
        return text


def features_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were encoded before the model was called, by kind."""
    given = arguments.get("mm_encoder_outputs")
    if given is None or isinstance(given, Mapping):
        return {kind: features for kind, features in (given or {}).items() if features is not None}
    return {"image": given}


def _marked(layouts: Sequence[Layout], like: Tensor) -> Tensor:
    """[B, S] bool: the visual tokens."""
    visual = torch.zeros_like(like)
    for row, layout in enumerate(layouts):
        visual[row, layout.positions.to(like.device)] = True
    return visual


def _needed(present: Tensor, visual: Tensor, told: Told, came: int) -> Tensor:
    """[B, S] positions whose output is needed even if they are dropped: the last of each row and the last of the prompt (their
    logits are the next token), and the visual ones in front of a word that is learnt. came: how many positions came before"""
    needed = present & (present.flip(1).long().cumsum(dim=1).flip(1) == 1)
    if told.prompt_length is not None and 0 < told.prompt_length - came <= present.shape[1]:
        last = told.prompt_length - came - 1  # candidates of assisted decoding stand behind it
        needed[:, last] |= present[:, last]
    if told.labels is not None:
        learnt = nn.functional.pad(told.labels != IGNORED, (0, 1))[:, 1:]
        needed = needed | (visual & present & learnt.to(needed.device))
    return needed
