"""Methods that cut at several blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from divevlm.checks import require
from divevlm.methods.base import Norm
from divevlm.methods.each import Each


@dataclass(frozen=True, kw_only=True)
class Staged(Each):
    """match: `keep` is what is left in the end ("final"), or what enters a block on average ("layer-mean")."""

    norm: Norm = "none"
    match: Literal["final", "layer-mean"] = "final"

    reads_text = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.layer is None, "layer", self.layer, f"None for {self.name}, which cuts at several blocks")
        require(self.match in ("final", "layer-mean"), "match", self.match, "'final' or 'layer-mean'")

    def stay(self, cut: int, keep: int, tokens: int, blocks: int) -> int:
        return self.stages(keep, tokens, blocks)[cut]

    @abstractmethod
    def stages(self, keep: int, tokens: int, blocks: int) -> Sequence[int]:
        """How many are left after each cut."""
