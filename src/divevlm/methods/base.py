"""What a method is: settings, where it cuts, and who it keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from divevlm.budget import Budget, Scope
from divevlm.core.rule import require
from divevlm.core.selection import Selection


@dataclass
class Signals:
    """What a method may look at, for tokens that compete with each other. Rows of `visual` are the candidates."""

    visual: Tensor  # [n, d] hidden states at the cut
    text: Tensor  # [M, d] hidden states of the prompt at the cut
    cells: Tensor  # [n, 3] frame, row, column of each candidate
    budget: Budget


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Settings that every method has.

    keep       how many visual tokens: a count, a share in (0, 1] or a Budget
    scope      of what: each "image" (default), "sample", "view" or "frame"
    layer      the cut is before this decoder block (0 = before the first); None = the family's default
    norm       what hidden states pass before the method sees them: the LM's "final" norm, the "next" block's, or "none"
    positions  "keep" the original position ids of kept tokens, or "compact" them
    placement  "layer": cut at that block; "entry": choose with that block's states, then run all blocks on the kept tokens
    newlines   "keep" newline and separator tokens beside the budget, or "drop" them
    """

    keep: int | float | Budget
    scope: Scope | None = None
    layer: int | None = None
    norm: Literal["final", "next", "none"] = "final"
    positions: Literal["keep", "compact"] = "keep"
    placement: Literal["layer", "entry"] = "layer"
    newlines: Literal["keep", "drop"] = "keep"
    budget: Budget = field(init=False, repr=False)

    name: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", Budget.of(self.keep, self.scope))
        whole = self.layer is None or (
            isinstance(self.layer, int) and not isinstance(self.layer, bool) and self.layer >= 0
        )
        require(whole, "layer", self.layer, "a block number of at least 0")
        for option, allowed in CHOICES.items():
            value = getattr(self, option)
            require(value in allowed, option, value, " or ".join(repr(choice) for choice in allowed))

    def blocks(self, blocks: int, default: int) -> tuple[int, ...]:
        """Before which blocks it cuts, ascending. blocks: how many there are, default: the family's single cut."""
        return (default if self.layer is None else self.layer,)

    def stay(self, cut: int, keep: int, tokens: int) -> int:
        """How many of a group's tokens are left after cut number `cut`. keep: by the budget, tokens: before any cut."""
        return keep

    @abstractmethod
    def select(self, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
        """Who is kept in each group of competing tokens; indices count within the group."""


CHOICES = {
    "norm": ("final", "next", "none"),
    "positions": ("keep", "compact"),
    "placement": ("layer", "entry"),
    "newlines": ("keep", "drop"),
}
