"""Pruning schedules: how many visual tokens stay after each cut, for a stated final count or mean over the blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from divevlm.checks import require


def tokens_per_block(tokens: int, blocks: int, cuts: Sequence[int], stays: Sequence[int]) -> list[int]:
    """Visual tokens that enter each block. cuts: before which blocks, stays: how many are left after each."""
    edges = [*cuts, blocks]
    entering = [tokens] * edges[0]
    for here, following, stay in zip(edges, edges[1:], stays, strict=False):
        entering += [stay] * (following - here)
    return entering


def keep_for_mean(mean: float, tokens: int, blocks: int, cut: int) -> int:
    """How many to keep at one cut so that `mean` tokens enter a block on average (FastV: 30 for 64 of 576 in 32 blocks)."""
    lowest = (cut * tokens + blocks - cut) / blocks
    require(
        lowest <= mean <= tokens, "keep", mean, f"between {lowest:.4g} and {tokens} as a mean with a cut at block {cut}"
    )
    return max(1, math.floor((blocks * mean - cut * tokens) / (blocks - cut) + 0.5))


def geometric_mean_share(ratio: float, cuts: Sequence[int], blocks: int) -> float:
    """Mean share of tokens that enter a block if each cut keeps `ratio` of those before it."""
    edges = [0, *cuts, blocks]
    return sum((b - a) * ratio**i for i, (a, b) in enumerate(pairwise(edges))) / blocks


def ratio_for_mean(share: float, cuts: Sequence[int], blocks: int) -> float:
    """The ratio with that mean share (PyramidDrop: 0.1916 for 64 of 576, cuts at 2, 8 and 16 of 32). By bisection."""
    lowest = cuts[0] / blocks
    require(
        lowest < share <= 1, "keep", share, f"a share above {lowest:.4g} as a mean with a first cut at block {cuts[0]}"
    )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if geometric_mean_share(middle, cuts, blocks) < share else (low, middle)
    return high


def geometric_stages(tokens: int, ratio: float, cuts: int, last: int | None = None) -> list[int]:
    """floor(N ratio^i), at least 1; `last`: exactly that many in the end."""
    stages = [max(1, math.floor(tokens * ratio**i + 1e-9)) for i in range(1, cuts + 1)]
    return stages if last is None else [*stages[:-1], last]


def scaled_blocks(after: Sequence[int], blocks: int, of: int = 32) -> tuple[int, ...]:
    """Cuts behind these blocks of `of`, brought to `blocks` (halves up). Distinct, none behind the last block."""
    return tuple(sorted({min(math.floor(b * blocks / of + 0.5) + 1, blocks - 1) for b in after}))
