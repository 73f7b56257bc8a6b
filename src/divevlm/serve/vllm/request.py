"""What travels from vLLM's front end to its workers with each image: the whole request, since the choice depends on all of it.

vLLM encodes images one by one and knows them by a key. So each image brings the prompt and the pixels of the others along, and
its key covers them all: no order of scheduling and no cache can mix up two questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
    PlaceholderRange,
)

BLOB = "dive"
ON_CPU = MultiModalBatchedField(
    keep_on_cpu=True
)  # fields elsewhere are taken off a request that finds its prefix cached


@dataclass(frozen=True)
class Span:
    """An image or video in the prompt before pruning. name: its hash, of pixels and processor settings"""

    kind: str
    name: str
    offset: int
    length: int
    keep: int  # how many of its tokens stay


@dataclass(frozen=True)
class Request:
    ids: Sequence[int]  # the prompt before pruning
    places: Sequence[Span]  # in the order of the prompt
    keep: int | float | None  # as the request itself says; None: as the deployment does
    settings: str  # of the deployment
    flat: Sequence[str]  # fields whose items vLLM puts one behind the other; others are stacked
    items: Sequence[Mapping[str, Tensor]] = field(compare=False, repr=False, default=())  # vLLM's own, of each place

    @cached_property
    def key(self) -> str:
        told = {name: value for name, value in self._told().items() if name != "flat"}
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def _told(self) -> dict[str, Any]:
        names = ("ids", "keep", "settings", "flat")
        return {name: getattr(self, name) for name in names} | {"places": [asdict(place) for place in self.places]}

    def pack(self, number: int) -> tuple[str, MultiModalKwargsItem]:
        """Key and content of image number `number`."""
        blob = json.dumps({**self._told(), "number": number}).encode()
        values = {BLOB: torch.frombuffer(bytearray(blob), dtype=torch.uint8)}
        for index, item in enumerate(self.items):
            values |= {f"{BLOB}_{index}_{name}": value for name, value in item.items()}
        elements = {name: MultiModalFieldElem(data=value, field=ON_CPU) for name, value in values.items()}
        return f"{self.key}-{number}", MultiModalKwargsItem(elements)

    @staticmethod
    def unpack(values: Mapping[str, Any]) -> tuple[Request, int]:
        """What was packed, by name; and which image it is."""
        told = json.loads(bytes(values[BLOB].tolist()))
        number = told.pop("number")
        items: list[dict[str, Tensor]] = [{} for _ in told["places"]]
        for name, value in values.items():
            if name != BLOB:
                _, index, own = name.split("_", 2)
                items[int(index)][own] = value
        places = [Span(**place) for place in told.pop("places")]
        return Request(places=places, items=items, **told), number

    def inputs(self, numbers: Sequence[int], device: torch.device) -> dict[str, Any]:
        """The arguments that vLLM's own model takes to encode these images, which are of one kind."""
        return {name: self._field(name).reduce_data(
            [MultiModalFieldElem(data=self.items[n][name], field=self._field(name)) for n in numbers], device=device
        ) for name in self.items[numbers[0]]}  # fmt: skip

    def given(self, number: int) -> dict[str, Any]:
        """The same of one image, for divevlm's families."""
        return self.inputs([number], torch.device("cpu"))

    def features(self) -> list[MultiModalFeatureSpec]:
        """As vLLM itself would describe the prompt before pruning."""
        return [
            MultiModalFeatureSpec(
                data=MultiModalKwargsItem(
                    {name: MultiModalFieldElem(data=value, field=self._field(name)) for name, value in item.items()}
                ),
                modality=place.kind,
                identifier=place.name,
                mm_position=PlaceholderRange(offset=place.offset, length=place.length),
            )
            for place, item in zip(self.places, self.items, strict=True)
        ]

    def _field(self, name: str) -> MultiModalBatchedField | MultiModalFlatField:
        return MultiModalFlatField(slices=()) if name in self.flat else MultiModalBatchedField()


def requests(arguments: Mapping[str, Any]) -> Iterator[tuple[Request, int]]:
    """Of a batch of images as vLLM hands it to a model: the request of each, and which of its images it is."""
    for row in range(len(arguments[BLOB])):
        yield Request.unpack({name: value[row] for name, value in arguments.items()})
