"""Greedy MAP inference of a determinantal point process (Chen et al., NeurIPS 2018): CDPruner's loop."""

from __future__ import annotations

import torch
from torch import Tensor

from divevlm.core.products import fill_gram, row_norms
from divevlm.core.top import best


def kernel(x: Tensor, relevance: Tensor) -> Tensor:
    """[N, N] L = diag(r) S diag(r) with S the cosines of the rows x: [N, d]."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    size = row_norms(x[None], dtype)[0]
    out = size.new_empty(len(x), len(x))
    fill_gram(out, x, relevance.to(dtype) / size.clamp_min(1e-12))
    return out


def greedy_dpp(kernel: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Pick the items that raise det(L_S) most, by an incremental Cholesky factor. kernel: [N, N], positive semi-definite.

    -> [keep] picks in order, [keep] gains: the factors of det(L_S). Gains that the precision can't tell from 0 are 0, and
    those of the rank and above come in input order.
    """
    start = kernel.diagonal()
    noise = 4 * torch.finfo(kernel.dtype).eps * start  # what rounding can do to each gain
    gain = start.clone()
    factor = kernel.new_zeros(keep, len(kernel))
    order: list[int] = []
    gains: list[Tensor] = []
    for step in range(keep):
        pick = best(gain, float(noise[gain.argmax()]))
        order.append(pick)
        gains.append(gain[pick].clone())
        if gain[pick] > 0:
            row = torch.addmv(kernel[pick], factor[:step].T, factor[:step, pick], alpha=-1)
            factor[step] = row.div_(gain[pick].sqrt())
            gain.sub_(factor[step].square())
            gain.masked_fill_(gain < 2 * noise, 0)
        gain[order] = -torch.inf
    return torch.tensor(order, device=kernel.device), torch.stack(gains)
