"""What comes into the language model with a prompt, and which of its visual tokens compete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from divevlm.budget import Segment
from divevlm.methods.base import Method, Vision
from divevlm.models.base import Layout


@dataclass(frozen=True)
class Prefill:
    layouts: Sequence[Layout]  # the visual tokens of each row
    present: Tensor  # [B, S] False for padding
    prompt: Tensor  # [B, S] the text that a method listens to: no padding, no answers
    needed: Tensor  # [B, S] positions whose output is needed, whether they stay or not
    ids: Tensor | None = None  # [B, S]
    embeds: Tensor | None = None  # [B, S, d] what entered the first block, where the method asks for it
    vision: Vision | None = None  # of all visual tokens of the batch, likewise
    vision_rows: Sequence[Tensor] = ()  # which of them are each row's


@dataclass(frozen=True)
class Group:
    """Visual tokens that compete with each other. Tokens are counted within their row's visual tokens."""

    row: int
    tokens: Tensor  # [n] the candidates at this cut, as they come in the sequence
    keep: int  # how many of them stay
    before: Tensor  # the candidates before any cut


def candidates(
    method: Method, cut: int, blocks: int, prefill: Prefill, kept: Sequence[Tensor] | None, places: Tensor
) -> list[Group]:
    """The groups of a batch at cut number `cut`.

    blocks: how many the model has; kept: [N] bool of each row, what earlier cuts have left; places: [B, S] the order of the
    sequence as it is.
    """
    groups = []
    for row, layout in enumerate(prefill.layouts):
        for before, keep in competitors(method, layout):
            tokens = before
            if kept is not None:
                tokens = tokens[kept[row][tokens]]
                tokens = tokens[places[row, layout.positions[tokens]].cpu().argsort()]
            groups.append(Group(row, tokens, method.stay(cut, keep, len(before), blocks), before))
    return groups


def competitors(method: Method, layout: Layout) -> list[tuple[Tensor, int]]:
    """Tokens that compete (indices within the sample's visual tokens; newlines never do), and how many of them stay."""
    markers = layout.markers
    ranges, sizes, start = [], [], 0
    for segment in layout.segments:
        tokens = torch.arange(start, start + segment.size)
        tokens = tokens[~markers[tokens]]
        ranges.append(tokens)
        sizes.append(Segment(len(tokens), segment.image, segment.view, segment.frame))
        start += segment.size
    shares = method.budget.shares(sizes)
    return [(torch.cat([ranges[i] for i in share.segments]), share.keep) for share in shares if share.keep]
