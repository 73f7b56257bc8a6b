"""Estimated operations of a prefill."""

from __future__ import annotations

from collections.abc import Sequence


def prefill_flops(lengths: Sequence[int], weights: Sequence[float], width: int) -> float:
    """Two operations for each weight and token, and the two products of attention; norms and softmax are left out.

    lengths: tokens in each block, weights: of its linear layers, width: of all its query heads together
    """
    return float(sum(2 * w * n + 4 * n * n * width for n, w in zip(lengths, weights, strict=True)))
