"""A selection: the kept tokens in the order they were picked, their scores, and a trace of every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from torch import Tensor

from divevlm.core.rule import EPS


@dataclass(frozen=True)
class Trace:
    """The state before each pick, for pictures and analyses. Rows are steps; a last row of the energies follows the last pick."""

    scores: Tensor  # [K, N] g; -1 where the token was picked before or is padding
    alignment: Tensor  # [K, N] phi; 0 for those tokens
    energy: Tensor  # [K + 1, N] squared norm of each visual residual
    query_energy: Tensor  # [K + 1, M] squared norm of each prompt residual: how much of that word is unresolved

    def first(self, steps: int) -> Trace:
        return Trace(
            self.scores[:steps], self.alignment[:steps], self.energy[: steps + 1], self.query_energy[: steps + 1]
        )


@dataclass(frozen=True)
class Rows:
    """What goes on instead of the tokens' own hidden states, of a method that merges.

    Each of the `slots` is one token of the group and lends its place; `values` are what stands there. In the sequence they
    come as listed here, whatever their places were ("compact" numbers them in that order, "keep" leaves each slot its own).
    `members`: the tokens that each row stands for, for reports; an empty list for a row that shows no place (CLS).
    """

    slots: Tensor  # [r] indices within the group, no two alike
    values: Tensor  # [r, d]
    members: list[list[int]]


@dataclass(frozen=True)
class Selection:
    """The kept tokens of one sample."""

    order: Tensor  # [K] token indices as picked
    scores: Tensor  # [K] the score with which each was picked
    left: Tensor | None = None  # [K + 1] DIVE: visual energy that is left before each pick and after the last
    trace: Trace | None = None
    note: str = ""  # what the method has to say about it
    rows: Rows | None = None  # of a method that merges: what goes on instead of the tokens themselves
    loop: str = ""  # DIVE: which of its loops ran

    @property
    def explained(self) -> float:
        """Share of the initial visual energy that the picks explain."""
        if self.left is None:
            raise ValueError("explained must be asked of a selection by DIVE, got one without energies")
        return 1 - float(self.left[-1] / self.left[0].clamp_min(EPS**2))

    @property
    def indices(self) -> Tensor:
        """[K] the kept token indices, ascending: the order in which the model sees them."""
        return self.order.sort().values

    def __len__(self) -> int:
        return self.order.shape[0]


class Selections(Sequence[Selection]):
    """The selections of a batch: behaves like a list of `Selection`."""

    def __init__(self, items: Sequence[Selection]) -> None:
        self._items = tuple(items)

    @overload
    def __getitem__(self, index: int) -> Selection: ...
    @overload
    def __getitem__(self, index: slice) -> Selections: ...
    def __getitem__(self, index: int | slice) -> Selection | Selections:
        return Selections(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Selection]:
        return iter(self._items)

    @property
    def indices(self) -> list[Tensor]:
        return [item.indices for item in self._items]

    @property
    def order(self) -> list[Tensor]:
        return [item.order for item in self._items]

    @property
    def scores(self) -> list[Tensor]:
        return [item.scores for item in self._items]
