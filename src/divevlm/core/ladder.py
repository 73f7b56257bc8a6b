"""How many tokens a method may keep where, so that a stated number comes out in the end or on average over the blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from divevlm.checks import require


def counts(tokens: int, blocks: int, cuts: Sequence[int], stays: Sequence[int]) -> list[int]:
    """Visual tokens that enter each block. cuts: before which blocks, stays: how many are left after each."""
    edges = [*cuts, blocks]
    entering = [tokens] * edges[0]
    for here, following, stay in zip(edges, edges[1:], stays, strict=False):
        entering += [stay] * (following - here)
    return entering


def single_cut(mean: float, tokens: int, blocks: int, cut: int) -> int:
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


def solve_ratio(share: float, cuts: Sequence[int], blocks: int) -> float:
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


def ladder(tokens: int, ratio: float, cuts: int, last: int | None = None) -> list[int]:
    """floor(N ratio^i), at least 1; `last`: exactly that many in the end."""
    found = [max(1, math.floor(tokens * ratio**i + 1e-9)) for i in range(1, cuts + 1)]
    if last is not None:
        found[-1] = last
    return found


def scaled_blocks(after: Sequence[int], blocks: int, of: int = 32) -> tuple[int, ...]:
    """Cuts behind these blocks of `of`, brought to `blocks` (halves up). Distinct, none behind the last block."""
    return tuple(sorted({min(math.floor(b * blocks / of + 0.5) + 1, blocks - 1) for b in after}))


# SparseVLM's tokens kept after blocks 2, 6 and 15 of 32, of 576, for each nominal budget (without recycled ones).
SPARSE = {192: (300, 200, 110), 128: (303, 110, 36), 96: (238, 48, 26), 64: (66, 30, 17)}
SPARSE_PLUS = {192: (300, 200, 118), 128: (238, 108, 60), 96: (246, 54, 28), 64: (66, 34, 20)}
SPARSE_TOKENS = 576


def recycled(pruned: int) -> tuple[int, int]:
    """SparseVLM: of `pruned` tokens, how many are clustered and into how many clusters (276: 83 and 9)."""
    some = int(0.3 * pruned) + 1
    return some, int(some / 10) + 1


def with_recycled(kept: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Totals after each stage, clusters included: 300, 200, 110 of 576 are 309, 204, 113."""
    totals = []
    for k in kept:
        k = min(k, tokens - 1) if tokens > 1 else tokens
        tokens = min(tokens, k + recycled(tokens - k)[1])
        totals.append(tokens)
    return tuple(totals)


def split_total(total: int, tokens: int) -> tuple[int, int]:
    """The kept and the clusters that make `total` of `tokens`; at least one is kept."""
    k = total
    while k > 1 and k + recycled(tokens - k)[1] > total:
        k -= 1
    return k, total - k


def between(key: float, table: Mapping[int, Sequence[float]]) -> list[float]:
    """Row of a table at `key`: in a line between its neighbours; below the first in proportion. Keys ascend."""
    keys = sorted(table)
    if key <= keys[0]:
        return [value * key / keys[0] for value in table[keys[0]]]
    high = next((k for k in keys if k >= key), keys[-1])
    low = keys[keys.index(high) - 1]
    at = min(1.0, (key - low) / (high - low))
    return [a + (b - a) * at for a, b in zip(table[low], table[high], strict=True)]


def sparse_stages(keep: int, tokens: int, *, mean: bool, plus: bool = False) -> tuple[int, ...]:
    """Visual tokens left after each of SparseVLM's three stages, recycled ones included.

    mean: `keep` is the authors' nominal budget (mean over blocks of the tokens that leave them); otherwise exactly `keep`
    are left in the end. Budgets that the authors do not list lie in a line between those they do, and other N are scaled.
    """
    lists = SPARSE_PLUS if plus else SPARSE
    factor = SPARSE_TOKENS / tokens
    full = (SPARSE_TOKENS,) * 3
    if mean:
        kept = between(keep * factor, {**lists, SPARSE_TOKENS: full})
        whole = [max(1, math.floor(k / factor + 0.5)) for k in kept]
        return tuple(min(tokens, k) for k in whole) if plus else with_recycled(whole, tokens)
    totals = lists.values() if plus else [with_recycled(kept, SPARSE_TOKENS) for kept in lists.values()]
    rows = between(keep * factor, {**{row[-1]: row for row in totals}, SPARSE_TOKENS: full})
    first, second, _ = (min(tokens, max(keep, math.floor(row / factor + 0.5))) for row in rows)
    return (max(first, second), second, keep)
