"""PyramidDrop: fewer visual tokens the deeper the block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from divevlm.checks import require
from divevlm.core.schedules import geometric_stages, ratio_for_mean
from divevlm.core.selection import Selection
from divevlm.methods.base import Needs, Signals
from divevlm.methods.each import ranked
from divevlm.methods.staged import Staged


@dataclass(frozen=True, kw_only=True)
class PyramidDrop(Staged):
    """At several blocks, the tokens that the last prompt token attends to most with the next block's weights.

    Each cut keeps the same share of the tokens before it, so that `keep` are left in the end (match="final") or enter a block
    on average (match="layer-mean").

    cuts    before which blocks; the authors' own table has (8, 16, 24) with ratios (0.5, 0.25, 0.125), and (2, 8, 16) for
            smaller budgets. Blocks that a model does not have are left out
    ratios  shares of all tokens that stay after each cut, in place of `keep`
    """

    cuts: tuple[int, ...] = (2, 8, 16)
    ratios: tuple[float, ...] | None = None

    name = "pdrop"
    needs = Needs(attention="last", block="after")
    default_positions = "compact"
    paper = "Xing et al., CVPR 2025"
    arxiv = "2410.17247"
    cost = "O(N d) x 3"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = isinstance(self.cuts, (list, tuple)) and all(type(cut) is int for cut in self.cuts)
        rising = whole and all(a < b for a, b in zip(self.cuts, self.cuts[1:], strict=False))
        require(bool(self.cuts) and rising and min(self.cuts) >= 0, "cuts", self.cuts, "ascending block numbers")
        fits = self.ratios is None or (
            len(self.ratios) == len(self.cuts) and all(0 < share <= 1 for share in self.ratios)
        )
        require(fits, "ratios", self.ratios, f"one share for each of the {len(self.cuts)} cuts, above 0 and at most 1")

    def blocks(self, blocks: int, default: int) -> tuple[int, ...]:
        return tuple(cut for cut in self.cuts if cut < blocks) or (max(0, blocks - 1),)

    def ratio(self, keep: int, tokens: int, blocks: int) -> float:
        """The share that each cut keeps of what reaches it."""
        cuts = self.blocks(blocks, 2)
        if self.match == "layer-mean":
            return ratio_for_mean(keep / tokens, cuts, blocks)
        return float((keep / tokens) ** (1 / len(cuts)))

    def stages(self, keep: int, tokens: int, blocks: int) -> list[int]:
        count = len(self.blocks(blocks, 2))
        if self.ratios is not None:
            return [max(1, int(tokens * ratio + 1e-9)) for ratio in self.ratios[:count]]
        last = keep if self.match == "final" else None
        return geometric_stages(tokens, self.ratio(keep, tokens, blocks), count, last=last)

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        stages = {"cuts": list(self.blocks(blocks, 2)), "stages": self.stages(keep, tokens, blocks)}
        return stages if self.ratios is not None else {**stages, "ratio": round(self.ratio(keep, tokens, blocks), 4)}

    def choose(self, signals: Signals, keep: int) -> Selection:
        attention = self.given(signals.attention, "attention rows of a block behind the cut")
        return ranked(attention[:, -1].float().mean(dim=0), keep)
