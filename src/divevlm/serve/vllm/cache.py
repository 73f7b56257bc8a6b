"""What was computed last, within a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor


class Recent:
    """Tensors by name, the least recently used given up first."""

    def __init__(self, bytes: int) -> None:
        self.bytes, self.held = bytes, 0
        self._found: OrderedDict[str, Sequence[Tensor]] = OrderedDict()

    def get(self, name: str) -> Sequence[Tensor] | None:
        if name not in self._found:
            return None
        self._found.move_to_end(name)
        return self._found[name]

    def put(self, name: str, tensors: Sequence[Tensor]) -> None:
        """What is larger than the bound is not kept."""
        size = sum(t.nbytes for t in tensors)
        if name in self._found or size > self.bytes:
            return
        self._found[name] = tensors
        self.held += size
        while self.held > self.bytes:
            _, oldest = self._found.popitem(last=False)
            self.held -= sum(t.nbytes for t in oldest)
