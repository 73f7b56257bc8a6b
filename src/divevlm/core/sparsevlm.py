"""SparseVLM's maths: which prompt tokens rate the visual ones, RoPE's part of attention, tokens left after each stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# Tokens kept after blocks 2, 6 and 15 of 32, of 576, for each nominal budget (without recycled ones).
SPARSE = {192: (300, 200, 110), 128: (303, 110, 36), 96: (238, 48, 26), 64: (66, 30, 17)}
SPARSE_PLUS = {192: (300, 200, 118), 128: (238, 108, 60), 96: (246, 54, 28), 64: (66, 34, 20)}
SPARSE_TOKENS = 576


def raters(visual: Tensor, text: Tensor) -> Tensor:
    """[M] bool: prompt tokens that the visual ones are like, more than average. visual: [N, d], text: [M, d] embeddings

    r = mean over visual tokens of softmax over the prompt of V T^T; raters have r above the mean of r.
    """
    share = torch.softmax(visual.float() @ text.float().T, dim=1).mean(dim=0)
    above = share > share.mean()
    return above if bool(above.any()) else torch.ones_like(above)


def gravity(text_tables: tuple[Tensor, Tensor], visual_tables: tuple[Tensor, Tensor]) -> Tensor:
    """[M, n] product of rotated vectors of ones over sqrt(head_dim): 2 / sqrt(d) sum_f cos((p - q) theta_f).

    Tables: cos and sin of RoPE at the positions, [M, head_dim] and [n, head_dim] (both halves alike, as transformers has
    them).
    """
    turned = []
    for cos, sin in (text_tables, visual_tables):
        half = cos.shape[-1] // 2
        turned.append(cos.float() + torch.cat([-sin[..., :half], sin[..., half:]], dim=-1).float())
    return turned[0] @ turned[1].T / math.sqrt(turned[0].shape[-1])


def recycled(pruned: int) -> tuple[int, int]:
    """SparseVLM: of `pruned` tokens, how many are clustered and into how many clusters (276: 83 and 9)."""
    clustered = int(0.3 * pruned) + 1
    return clustered, int(clustered / 10) + 1


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
