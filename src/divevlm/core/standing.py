"""For how many tokens each kept one stands."""

from __future__ import annotations

import torch
from torch import Tensor


def stand_for(states: Tensor, kept: Tensor, sizes: Tensor) -> Tensor:
    """[K] sizes of the kept tokens once every other one has joined the most similar of them (cosine; ties: the lower index).

    states: [n, d], kept: [K] indices, sizes: [n] how many each token stands for so far
    """
    rows = torch.nn.functional.normalize(states.float(), dim=-1)
    joins = (rows @ rows[kept].T).argmax(dim=1)  # whom each token would join
    joins[kept] = torch.arange(len(kept), device=kept.device)
    return sizes.new_zeros(len(kept)).index_add_(0, joins, sizes)
