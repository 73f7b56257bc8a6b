"""SparseVLM's maths: which prompt tokens rate, and what RoPE alone adds to attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def raters(visual: Tensor, text: Tensor) -> Tensor:
    """[M] bool: prompt tokens that the visual ones are like, more than average. visual: [N, d], text: [M, d] embeddings

    r = mean over visual tokens of softmax over the prompt of V T^T; raters have r above the mean of r.
    """
    share = torch.softmax(visual.float() @ text.float().T, dim=1).mean(dim=0)
    heard = share > share.mean()
    return heard if bool(heard.any()) else torch.ones_like(heard)


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
