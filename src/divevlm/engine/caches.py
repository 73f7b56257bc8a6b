"""What a conversation remembers between forward passes, and what its cache must not do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import DynamicCache


@dataclass
class Conversation:
    """Belongs to a cache: which of its columns are real (not padding), for the blocks after each cut.

    pruned: something was dropped, so the model's own masks no longer fit.
    length: columns that an unpruned cache would have.
    """

    valid: dict[int, Tensor] = field(default_factory=dict)  # number of the cut -> [B, columns]
    pruned: bool = False
    length: int = 0


def guard(cache: Any, talk: Conversation, pretend: bool) -> None:
    """Refuse what a pruned cache can't do. A cut before block 0 shortens the block by which transformers measures a cache:
    then it is to `pretend` to the length that it would have unpruned."""

    def mask_sizes(query: Any, layer_idx: int = 0) -> tuple[int, int]:
        return talk.length + (query if isinstance(query, int) else query.shape[0]), 0

    cache.crop = _refuse_crop
    if pretend:
        cache.get_seq_length = lambda layer_idx=0: talk.length
        cache.get_mask_sizes = mask_sizes


def _refuse_crop(*_: Any, **__: Any) -> None:
    raise ValueError(
        "cache must be left whole under pruning, got crop(): assisted and speculative decoding can't be used"
    )


def glimpse(cache: Any, layers: int) -> DynamicCache:
    """A throw-away cache with what the first blocks hold."""
    copy = DynamicCache()
    for number in range(layers):
        copy.update(cache.layers[number].keys, cache.layers[number].values, number)
    return copy
