"""What is the same for all methods runs once a batch: the vision tower, and the decoder blocks before the cut.

The blocks remember their first input and output; the same input again (compared, not assumed) gives the same output and
the same cache entries. Any other input runs as ever. A picture that stands in several rows behind one another (questions about
it) runs through the tower once. Hooks, and so the engine, see every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from divevlm.engine.patches import Patch
from divevlm.models import family_of


@dataclass
class Memory:
    """Of a module: the first input of a batch, and its output."""

    hidden: Tensor
    others: dict[str, Any]
    output: Any
    entries: tuple[Tensor, Tensor] | None = None  # keys and values


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and not isinstance(a, Tensor) and (a is b or a == b)


def _copy(output: Any) -> Any:
    return tuple(_copy(part) for part in output) if isinstance(output, tuple) else output.clone()


def _distinct(run: Callable[..., Any], hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tower block, without the rows that equal the one before them."""
    tied = any(isinstance(value, Tensor) for value in (*args, *kwargs.values()))
    if hidden.dim() != 3 or tied or len(hidden) < 2:
        return run(hidden, *args, **kwargs)
    new = torch.tensor([True, *(not torch.equal(a, b) for a, b in pairwise(hidden))], device=hidden.device)
    if new.all():
        return run(hidden, *args, **kwargs)
    number = new.cumsum(0) - 1
    output = run(hidden[new], *args, **kwargs)
    return tuple(part[number] for part in output) if isinstance(output, tuple) else output[number]


class SharedPrefix:
    """`with prefix.shared():` computes shared blocks once until `forget()`, which belongs between two batches."""

    def __init__(self, model: Any) -> None:
        family = family_of(model)
        blocks = list(family.at(model, family.text).layers)[: family.default_layer]
        self.blocks: list[tuple[nn.Module, int | None]] = [(block, number) for number, block in enumerate(blocks)]
        self.blocks += [(block, None) for block in family.tower_blocks(model)]
        self.memories: dict[nn.Module, Memory] = {}

    def forget(self) -> None:
        self.memories.clear()

    @contextmanager
    def shared(self) -> Iterator[None]:
        with ExitStack() as stack:
            for block, number in self.blocks:
                stack.callback(Patch(block, "forward", self._wrapped(block, number)).undo)
            yield

    @staticmethod
    def _repeats(known: Memory, hidden: Tensor, others: dict[str, Any]) -> bool:
        if others.keys() != known.others.keys() or not _same(hidden, known.hidden):
            return False
        return all(_same(value, known.others[name]) for name, value in others.items())

    def _wrapped(self, block: nn.Module, number: int | None) -> Callable[..., Any]:
        def forward(run: Callable[..., Any], hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            cache = kwargs.get("past_key_values")
            if cache is not None and number is not None and cache.get_seq_length(number):
                return run(hidden_states, *args, **kwargs)  # decoding
            others = {name: value for name, value in kwargs.items() if name != "past_key_values"}
            others |= {f"argument {i}": value for i, value in enumerate(args)} | {"cached": cache is not None}
            known = self.memories.get(block)
            if known is not None and self._repeats(known, hidden_states, others):
                if cache is not None and known.entries is not None:
                    cache.update(*(entry.clone() for entry in known.entries), number)
                return _copy(known.output)
            output = (
                _distinct(run, hidden_states, args, kwargs) if number is None else run(hidden_states, *args, **kwargs)
            )
            if known is None:
                entries = None
                if cache is not None and number is not None:
                    layer = cache.layers[number]
                    entries = (layer.keys.clone(), layer.values.clone())
                self.memories[block] = Memory(hidden_states, others, _copy(output), entries)
            return output

        return forward
