"""In vLLM's workers: encode, look ahead, choose, and hand on the rows that stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor

from divevlm.engine.decide import decide
from divevlm.engine.prefill import Prefill
from divevlm.engine.sequence import Columns
from divevlm.engine.signals import Gatherer
from divevlm.models.base import Layout
from divevlm.serve.vllm.cache import Recent
from divevlm.serve.vllm.processor import visuals
from divevlm.serve.vllm.request import BLOB, Request, requests
from divevlm.serve.vllm.scout import embedded, scout, states_norm
from divevlm.serve.vllm.settings import Settings

AT_ONCE = 8  # images in the tower: vLLM counts the tokens that stay, so it would let in too many


class Pruned:
    """Stands before one of vLLM's models with M-RoPE."""

    supports_mrope: ClassVar[bool] = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.settings = Settings.of(vllm_config.model_config.hf_config)
        self.recent = Recent(self.settings.cache_bytes)

    def embed_multimodal(self, **arguments: Any) -> Any:
        if BLOB not in arguments:
            return super().embed_multimodal(**arguments)  # type: ignore[misc]
        return [self.outcome(request)[1][number] for request, number in requests(arguments)]

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """The positions that the tokens of the prompt had before pruning. vLLM asks when a request comes in: the choice is
        made here."""
        if not mm_features:
            return self.full_positions(input_tokens, [])
        request, _ = Request.unpack({name: element.data for name, element in mm_features[0].data.items()})
        dropped = sum(place.length - place.keep for place in request.places)
        answered = input_tokens[len(request.ids) - dropped :]  # of a request that is taken up again
        positions, delta = self.full_positions([*request.ids, *answered], request.features())
        stay = torch.ones(positions.shape[1], dtype=torch.bool)
        for place, kept in zip(request.places, self.outcome(request)[0], strict=True):
            stay[place.offset : place.offset + place.length] = False
            stay[place.offset + kept.long()] = True
        return positions[:, stay], delta + dropped

    def full_positions(self, ids: Sequence[int], features: list[Any]) -> tuple[Tensor, int]:
        """Of a prompt that is not pruned: [3, S], and what to add to the length for the next one."""
        return super().get_mrope_input_positions(list(ids), features)  # type: ignore[misc, no-any-return]

    def outcome(self, request: Request) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Of each image: which of its tokens stay (on the CPU), and their rows."""
        number = len(request.places)
        found = self.recent.get(f"request {request.key}")
        if found is None:
            full = self.encoded(request)
            kept = self.choose(request, full)
            rows = [rows[indices.to(rows.device)] for rows, indices in zip(full, kept, strict=True)]
            found = [*(indices.int() for indices in kept), *(r.cpu() for r in rows)]
            self.recent.put(f"request {request.key}", found)
        return found[:number], [rows.to(self._device) for rows in found[number:]]

    def encoded(self, request: Request) -> list[Tensor]:
        """All visual tokens of each image: [N, d]"""
        found = {place.name: self.recent.get(f"image {place.name}") for place in request.places}
        rows = {name: seen[0].to(self._device) for name, seen in found.items() if seen is not None}
        first = {place.name: number for number, place in reversed(list(enumerate(request.places)))}
        missing = [number for name, number in first.items() if name not in rows]
        for _, group in groupby(sorted(missing, key=self._kind(request)), key=self._kind(request)):
            numbers = list(group)
            for start in range(0, len(numbers), AT_ONCE):
                some = numbers[start : start + AT_ONCE]
                made = super().embed_multimodal(**request.inputs(some, self._device))  # type: ignore[misc]
                for number, features in zip(some, made, strict=True):
                    place = request.places[number]
                    rows[place.name] = features.reshape(place.length, -1)
                    self.recent.put(f"image {place.name}", [rows[place.name].cpu()])
        return [rows[place.name] for place in request.places]

    @torch.no_grad()
    def choose(self, request: Request, full: Sequence[Tensor]) -> list[Tensor]:
        """Which tokens of each image stay, ascending."""
        settings, method, text = self.settings, self.settings.method(request.keep), self.text
        ids = torch.tensor(request.ids, device=self._device)
        visual = torch.zeros(len(ids), dtype=torch.bool, device=self._device)
        for place in request.places:
            visual[place.offset : place.offset + place.length] = True
        embeds, deep = self.entering(ids, visual, torch.cat(list(full)))
        positions = self.full_positions(request.ids, request.features())[0].to(self._device)
        positions = positions if settings.grid else positions[0]
        states = scout(text, settings.look, embeds, positions, deep)
        layout = Layout(visual.nonzero()[:, 0].cpu(), visuals(request, settings))
        present = torch.ones_like(visual)[None]
        whole = Prefill([layout], present, ~visual[None], present, ids[None], embeds[None])
        norm = states_norm(text, settings.look, method.norm)
        here = torch.arange(len(ids), device=self._device)[None]
        gatherer = Gatherer(method, whole, 0, states[None], here, Columns(present), norm, None)
        kept = decide(method, settings.blocks, whole, 0, gatherer.signals, states[None], None).kept[0]
        return [part.nonzero()[:, 0] for part in kept.split([place.length for place in request.places])]

    def entering(self, ids: Tensor, visual: Tensor, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[S, d] the whole prompt as it enters the first block, and what is added behind blocks."""
        return embedded(self.text.embed_input_ids, ids, visual, rows), []

    @property
    def text(self) -> Any:
        return self.language_model.model  # type: ignore[attr-defined]

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self.text.parameters()).device
        return device

    @staticmethod
    def _kind(request: Request) -> Any:
        return lambda number: request.places[number].kind
