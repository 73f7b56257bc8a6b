"""A pruned KV cache: its layers know which of their columns may be attended to, and refuse to be used without their method.

What belongs to a conversation lives in the layers of its cache. So it goes where the cache goes: `copy.deepcopy`,
`reorder_cache`, `batch_repeat_interleave`, `batch_select_indices`, `crop` and `reset` act on it as on keys and values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin

from divevlm.engine.sequence import Columns


@dataclass(frozen=True)
class Pruner:
    """Who pruned a cache: only a method that cuts in the same way can go on with it."""

    method: str
    cuts: tuple[int, ...]
    positions: str
    biased: bool  # its columns are not alike

    def __str__(self) -> str:
        more = ", proportional" if self.biased else ""
        return f"{self.method} before block {', '.join(map(str, self.cuts))}, positions {self.positions}{more}"

    def goes_on_with(self, other: Pruner) -> bool:
        return (self.cuts, self.positions, self.biased) == (other.cuts, other.positions, other.biased)


@dataclass(frozen=True)
class NewColumns:
    """What a pass is about to add to a layer."""

    columns: Columns
    present: Tensor  # [B, S] the positions behind them, False for padding


class PrunedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a pruned cache, in front of the layer that stores (`held`: dynamic, quantized, ...).

    columns what later tokens may attend to, and how strongly; only of block 0 and of the first block behind each cut
    present [B, length] of block 0: which positions were not padding, of all that came
    length  positions that came: columns that an unpruned cache would have
    tail    how many of the last columns are one position each in every layer and row: as many can be cropped
    """

    def __init__(
        self, held: Any, block: int, pruner: Pruner, columns: Columns | None, present: Tensor | None, length: int
    ) -> None:
        self.held, self.block, self.pruner, self.length = held, block, pruner, length
        self.columns, self.present = columns, present
        self.tail = 0
        self.emptied = False  # it was emptied: nothing pruned is in it any more
        self.coming: NewColumns | None = None  # what the pass under way is about to add

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.emptied:
            return self.held.update(key_states, value_states, *args, **kwargs)
        if self.coming is None:
            raise ValueError(
                f"past_key_values must be used with the method that pruned it attached to the model ({self.pruner}), "
                "got a pass without it"
            )
        coming, self.coming = self.coming, None
        self.length += coming.present.shape[1]
        if self.columns is not None:
            self.columns = self.columns.then(coming.columns)
        if self.present is not None:
            self.present = torch.cat([self.present, coming.present], dim=1)
        return self.held.update(key_states, value_states, *args, **kwargs)

    # Sizes. A cut before block 0 shortens the layer by which transformers measures a cache: it tells the length unpruned.

    def get_seq_length(self) -> int:
        return self.length if self.block == 0 and not self.emptied else int(self.held.get_seq_length())

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        columns, offset = self.held.get_mask_sizes(query_length)
        return columns + self.get_seq_length() - self.held.get_seq_length(), offset

    # Rows and columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.held.reorder_cache(beam_idx)
        self._rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.held.batch_repeat_interleave(repeats)
        self._rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.held.batch_select_indices(indices)
        self._rows(lambda rows: rows[indices.to(rows.device)])

    def _rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.columns is not None and not self.emptied:
            self.columns = self.columns.map(change)
        if self.present is not None and not self.emptied:
            self.present = change(self.present)

    def crop(self, tokens: int) -> None:
        """tokens: how many to take away as a negative number, or (older versions of transformers) how many to leave."""
        if self.emptied:
            self.held.crop(tokens)
            return
        remove = -tokens if tokens <= 0 else max(0, self.length - tokens)
        if remove > self.tail:
            raise ValueError(
                f"crop() of a pruned cache must be of at most {self.tail} tokens (those behind its last dropped one), "
                f"got {remove}: start from a copy of the cache that was made before the image"
            )
        if remove:
            self.held.crop(-remove)
            self._rows(lambda rows: rows[:, :-remove])
            self.length, self.tail = self.length - remove, self.tail - remove

    def reset(self) -> None:
        self.held.reset()
        self.emptied = self.held.get_seq_length() == 0  # older versions of transformers leave a cache its length

    # The rest is the business of the layer that stores

    keys = property(lambda self: self.held.keys)
    values = property(lambda self: self.held.values)
    is_initialized = property(lambda self: self.held.is_initialized)
    is_croppable = property(lambda self: getattr(self.held, "is_croppable", True))

    def __getattr__(self, name: str) -> Any:
        if name == "held":  # asked for while a copy is being made
            raise AttributeError(name)
        return getattr(self.held, name)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.held.lazy_initialization(key_states, value_states)

    def offload(self) -> None:
        self.held.offload()

    def prefetch(self) -> None:
        self.held.prefetch()

    def get_max_length(self) -> int:
        return int(self.held.get_max_length())

    def get_max_cache_shape(self) -> int:  # its name in older versions of transformers
        return int(self.held.get_max_cache_shape())


def is_pruned(cache: Any) -> bool:
    first = next(iter(getattr(cache, "layers", None) or ()), None)
    return isinstance(first, PrunedLayer) and not first.emptied


def mark_pruned(cache: Any, pruner: Pruner, blocks: int, done: int, past: Tensor, now: Tensor) -> None:
    """At the first cut that drops something. past: [B, P] and now: [B, S] valid columns; the first `done` of the `blocks`
    have run in this pass already."""
    while len(cache.layers) < blocks:
        cache.layers.append(cache.layer_class_to_replicate())
    both = torch.cat([past, now], dim=1)
    for block, layer in enumerate(cache.layers):
        held = layer.held if isinstance(layer, PrunedLayer) else layer
        known = both if block < done else past
        columns = Columns(known) if block == 0 or block in pruner.cuts else None
        present = known if block == 0 else None
        cache.layers[block] = PrunedLayer(held, block, pruner, columns, present, known.shape[1])


def keys_and_values(layer: Any) -> tuple[Tensor, Tensor]:
    """Keys and values of all columns, of any kind of layer. The layer stays as it is."""
    twin = copy.copy(layer.held if isinstance(layer, PrunedLayer) else layer)
    if not hasattr(twin, "_quantized_keys"):
        return twin.keys, twin.values
    some = twin.keys if twin.keys.dim() == 4 else twin._dequantize(twin._quantized_keys)
    nothing = some[:, :, :0]
    keys, values = twin.update(nothing, nothing)
    return keys, values


def copy_of_first(cache: Any, layers: int) -> DynamicCache:
    """A throw-away cache with what the first blocks hold."""
    copied = DynamicCache()
    for number in range(layers):
        copied.update(*keys_and_values(cache.layers[number]), number)
    return copied
