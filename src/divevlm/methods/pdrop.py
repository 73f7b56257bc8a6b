"""PyramidDrop: fewer visual tokens the deeper the block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from divevlm.checks import require
from divevlm.core.schedules import geometric_stages, ratio_for_mean
from divevlm.core.selection import Selection
from divevlm.methods.base import Needs, Signals
from divevlm.methods.each import Each, ranked


@dataclass(frozen=True, kw_only=True)
class PyramidDrop(Each):
    """At several blocks, the tokens that the last prompt token attends to most with the next block's weights.

    Each cut keeps the same share of the tokens before it, so that `keep` are left in the end (match="final") or enter a block
    on average (match="layer-mean").

    cuts    before which blocks; the authors' own table has (8, 16, 24) with ratios (0.5, 0.25, 0.125), and (2, 8, 16) for
            smaller budgets. Blocks that a model does not have are left out
    ratios  shares of all tokens that stay after each cut, in place of `keep`
    """

    norm: Literal["final", "next", "none"] = "none"
    cuts: tuple[int, ...] = (2, 8, 16)
    match: Literal["final", "layer-mean"] = "final"
    ratios: tuple[float, ...] | None = None

    name = "pdrop"
    needs = Needs(attention="last", block="after")
    default_positions = "compact"
    paper = "Xing et al., CVPR 2025"
    reads_text = True
    cost = "O(N d) x 3"

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = all(a < b for a, b in zip(self.cuts, self.cuts[1:], strict=False))
        require(bool(self.cuts) and min(self.cuts) >= 0 and rising, "cuts", self.cuts, "ascending block numbers")
        require(self.layer is None, "layer", self.layer, "None for pdrop, which cuts at `cuts`")
        require(self.match in ("final", "layer-mean"), "match", self.match, "'final' or 'layer-mean'")
        fits = self.ratios is None or len(self.ratios) == len(self.cuts)
        require(fits, "ratios", self.ratios, f"one share for each of the {len(self.cuts)} cuts")

    def blocks(self, blocks: int, default: int) -> tuple[int, ...]:
        return tuple(cut for cut in self.cuts if cut < blocks) or (max(0, blocks - 1),)

    def stay(self, cut: int, keep: int, tokens: int, blocks: int) -> int:
        return self.stages(keep, tokens, blocks)[cut]

    def stages(self, keep: int, tokens: int, blocks: int) -> list[int]:
        """How many are left after each cut."""
        cuts = self.blocks(blocks, 2)
        if self.ratios is not None:
            return [max(1, int(tokens * ratio + 1e-9)) for ratio in self.ratios[: len(cuts)]]
        if self.match == "layer-mean":
            return geometric_stages(tokens, ratio_for_mean(keep / tokens, cuts, blocks), len(cuts))
        return geometric_stages(tokens, (keep / tokens) ** (1 / len(cuts)), len(cuts), last=keep)

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        cuts = self.blocks(blocks, 2)
        found: dict[str, Any] = {"cuts": list(cuts), "stages": self.stages(keep, tokens, blocks)}
        if self.ratios is None:
            mean = self.match == "layer-mean"
            ratio = ratio_for_mean(keep / tokens, cuts, blocks) if mean else (keep / tokens) ** (1 / len(cuts))
            found["ratio"] = round(ratio, 4)
        return found

    def choose(self, signals: Signals, keep: int) -> Selection:
        attention = self.given(signals.attention, "attention rows of a block behind the cut")
        return ranked(attention[:, -1].float().mean(dim=0), keep)
