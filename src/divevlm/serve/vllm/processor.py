"""In vLLM's front end: the stock processor, then a prompt with room for the tokens that stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from vllm.multimodal.inputs import MultiModalFlatField, MultiModalKwargsItems, PlaceholderRange

from divevlm.checks import require
from divevlm.engine.decide import competitors
from divevlm.methods import Method
from divevlm.models.base import Layout, Visual
from divevlm.serve.vllm.request import Request, Span
from divevlm.serve.vllm.settings import Settings

KEEP = "dive_keep"  # in a request's mm_processor_kwargs: its own budget


class PrunedProcessor:
    """Stands before one of vLLM's processors."""

    @cached_property
    def _dive(self) -> Settings:
        return Settings.of(self.info.get_hf_config())  # type: ignore[attr-defined]

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        options = dict(inputs.hf_processor_mm_kwargs)
        keep = options.pop(KEEP, None)
        method = self._dive.method(keep)
        # without vLLM's processor cache, whose answer may be "the worker has it": here every image is needed
        stock = replace(inputs, hf_processor_mm_kwargs=options, cache=None)
        full = super().apply(stock, timing_ctx)  # type: ignore[misc]
        if not any(full["mm_placeholders"].values()):
            return full
        return shortened(full, request_of(full, self._dive, method, keep))


def pruned(processor: type) -> type:
    return type(f"Dive{processor.__name__}", (PrunedProcessor, processor), {})


def request_of(full: Mapping[str, Any], settings: Settings, method: Method, keep: Any) -> Request:
    """full: what the stock processor made of a request."""
    found = [
        (spot, kind, number) for kind, spots in full["mm_placeholders"].items() for number, spot in enumerate(spots)
    ]
    found.sort(key=lambda one: one[0].offset)
    items = [full["mm_kwargs"][kind][number] for _, kind, number in found]
    names = sorted({name for item in items for name in item})
    given = [name for name in names if name.endswith("_embeds")]
    require(not given, "mm_data", ", ".join(given), "pixels: pruning looks at the whole image")
    require(
        all(spot.is_embed is None for spot, *_ in found), "mm_data", found[0][1], "one unbroken run of visual tokens"
    )
    most = settings.config.get_text_config().max_position_embeddings
    length = len(full["prompt_token_ids"])
    require(length <= most, "prompt", f"{length} tokens before pruning", f"at most {most} (the model's positions)")
    flat = [name for name in names if any(isinstance(i[name].field, MultiModalFlatField) for i in items if name in i)]
    request = Request(
        ids=list(full["prompt_token_ids"]),
        places=[Span(kind, full["mm_hashes"][kind][n], spot.offset, spot.length, 0) for spot, kind, n in found],
        keep=keep,
        settings=settings.key(keep),
        flat=flat,
        items=[{name: element.data for name, element in item.items()} for item in items],
    )
    places = []
    for place, visual in zip(request.places, visuals(request, settings), strict=True):
        require(
            visual.size == place.length, "image", f"{place.length} tokens", f"{visual.size}, as divevlm counts them"
        )
        places.append(replace(place, keep=count(method, visual)))
    return replace(request, places=places)


def visuals(request: Request, settings: Settings) -> list[Visual]:
    """Views, rows and columns of each image."""
    model = SimpleNamespace(config=settings.config)
    return [
        settings.family.visuals(model, place.kind, request.given(number))[0]
        for number, place in enumerate(request.places)
    ]


def count(method: Method, visual: Visual) -> int:
    """How many tokens of an image stay."""
    layout = Layout(torch.arange(visual.size), [visual])
    markers = int(layout.markers.sum()) if method.newlines == "keep" else 0
    return markers + sum(keep for _, keep in competitors(method, layout))


def shortened(full: Mapping[str, Any], request: Request) -> Any:
    """With fewer placeholders, and items and keys that belong to this very request."""
    ids: list[int] = []
    done = 0
    spots: dict[str, list[PlaceholderRange]] = {kind: [] for kind in full["mm_placeholders"]}
    hashes: dict[str, list[str]] = {kind: [] for kind in spots}
    items: dict[str, list[Any]] = {kind: [] for kind in spots}
    for number, place in enumerate(request.places):
        ids += request.ids[done : place.offset]
        spot = PlaceholderRange(offset=len(ids), length=place.keep)
        ids += request.ids[place.offset : place.offset + place.keep]
        done = place.offset + place.length
        key, item = request.pack(number)
        for found, value in ((spots, spot), (hashes, key), (items, item)):
            found[place.kind].append(value)
    ids += request.ids[done:]
    return {
        **full,
        "prompt_token_ids": ids,
        "mm_placeholders": spots,
        "mm_hashes": hashes,
        "mm_kwargs": MultiModalKwargsItems(items),
    }
