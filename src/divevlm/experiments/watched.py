"""A method that remembers what it looked at, so that the kept set can be measured afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from divevlm.core.metrics import redundancy
from divevlm.core.selection import Selection
from divevlm.methods import Method
from divevlm.methods.base import Signals


class Watched(Method):
    """Mixed into the class of a method by `watched`."""

    seen: list[tuple[Signals, Selection]]  # of the last cut, group by group

    def redundancy(self, sample: int, samples: int) -> float | None:
        """Eq. 19 on the states at the cut; None where groups are not samples or one token is left."""
        if len(self.seen) != samples or len(self.seen[sample][1]) < 2:
            return None
        signals, selection = self.seen[sample]
        return redundancy(signals.visual, selection.order)


def watched(method: Method) -> Watched:
    """The same method, which keeps the signals and selections of its last call."""

    def select(self: Any, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
        found: list[Selection] = type(method).select(self, groups, keeps)
        object.__setattr__(self, "seen", list(zip(groups, found, strict=True)))
        return found

    kind = type(type(method).__name__, (type(method), Watched), {"select": select})
    same: Any = copy(method)
    object.__setattr__(same, "__class__", kind)
    object.__setattr__(same, "seen", [])
    return same  # type: ignore[no-any-return]
