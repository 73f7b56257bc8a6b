"""Auxiliary losses on the states of question words: hints on the way to an answer. Used in training only."""

from __future__ import annotations

from typing import Any

import torch
from divevlm_tiny.scene import GRID
from divevlm_tiny.words import COLORS, PATTERNS, SHAPES, SIGN
from torch import Tensor, nn
from torch.nn import functional

from training.batches import PATCH_LABELS, PLACE_LABELS, PRINTED, VERDICTS

WORDS = {"shape": (*SHAPES, SIGN), "color": COLORS, "pattern": PATTERNS, "printed": PRINTED}
NOUN_LABELS = {"row": GRID, "column": GRID, "size": 10, "shape": 10, "color": 9, "pattern": 4}
COUNT, COUNTING_HEADS = (2, 3), 2  # the blocks whose first two heads count
POINT, PAIR, TELL = 4, 6, 7  # blocks after which a phrase is located, two of them compared, and the comparison told


class Heads(nn.Module):
    """Used in training only, dropped when the model is saved."""

    def __init__(self, width: int, vision: int, grid: int = GRID) -> None:
        super().__init__()
        self.nothing = nn.ParameterDict({kind: nn.Parameter(0.1 * torch.randn(width)) for kind in WORDS})
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.patch = nn.ModuleDict(
            {
                kind: nn.Linear(width, classes + 1)
                for kind, classes in (PATCH_LABELS | PLACE_LABELS).items()
                if kind not in WORDS
            }
        )
        labels = NOUN_LABELS | {"row": grid, "column": grid}
        self.noun = nn.ModuleDict({kind: nn.Linear(width, classes) for kind, classes in labels.items()})
        self.present = nn.Linear(vision, 9 * 8)
        self.mask = nn.Linear(vision, 49)
        self.way = nn.Linear(width, 2)
        self.measure = nn.Linear(width, 3)
        self.count = nn.Linear(width, 5)
        self.order = nn.Linear(width, 3)
        self.apart = nn.Linear(width, 3)
        self.verdict = nn.Linear(width, len(VERDICTS))


def hints(
    heads: Heads, after: dict[int, Tensor], looks: Tensor | None, made: dict[str, Any]
) -> tuple[Tensor, dict[str, float], dict[str, tuple[int, int]]]:
    """All of them added up, each by itself, and what was right."""
    nouns, pairs, counts = made["nouns"], made["pairs"], made["counts"]
    noun, right = noun_loss(heads, after[POINT], nouns, counts)
    order, right["noun order"] = pair_loss(heads, after[PAIR], nouns, pairs)
    verdict, right["noun verdict"] = verdict_loss(heads, after[TELL], nouns, pairs)
    total, parts = 0.5 * noun + order + verdict, {"noun": noun.item(), "order": order.item(), "verdict": verdict.item()}
    if looks is not None:
        gaze = gaze_loss(looks, counts, made["counted"])
        total, parts["gaze"] = total + 5 * gaze, gaze.item()
    return total, parts, right


def noun_loss(heads: Heads, middle: Tensor, nouns: Tensor, counts: Tensor) -> tuple[Tensor, dict[str, tuple[int, int]]]:
    """What a phrase names, where it is and how large (as classes and as numbers that can be compared), and how many there are."""
    states = middle[nouns[:, 0], nouns[:, 1]]
    total, right = middle.new_zeros(()), {}
    for column, kind in enumerate(NOUN_LABELS):
        logits, truth = heads.noun[kind](states), nouns[:, 2 + column]
        total = total + functional.cross_entropy(logits, truth)
        right[f"noun {kind}"] = (int((logits.argmax(-1) == truth).sum()), len(truth))
    x, y, size = nouns[:, 8:11].float().unbind(1)
    numbers = torch.stack([x / 168 - 1, y / 168 - 1, (size / 14).log2() / 1.35 - 1], dim=1)
    total = total + 4 * functional.mse_loss(heads.measure(states), numbers)
    logits, truth = heads.count(middle[counts[:, 0], counts[:, 1]]), counts[:, 2]
    right["noun count"] = (int((logits.argmax(-1) == truth).sum()), len(truth))
    return total + 3 * functional.cross_entropy(logits, truth, reduction="sum") / max(1, len(truth)), right


def pair_loss(heads: Heads, late: Tensor, nouns: Tensor, pairs: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """At the second of two phrases: is the first one further right, further down, larger, and by how much?"""
    first, second = nouns[pairs[:, 0]], nouns[pairs[:, 1]]
    states = late[second[:, 0], second[:, 1]]
    logits = heads.order(states)
    apart = (first - second)[:, 8:11]
    clear = apart.abs() >= torch.tensor([20, 20, 5])
    truth = apart > 0
    loss = functional.binary_cross_entropy_with_logits(logits, truth.float(), reduction="none")
    right = ((logits > 0) == truth) & clear
    ratio = (first[:, 10] / second[:, 10]).log2()
    much = torch.stack([apart[:, 0] / 168, apart[:, 1] / 168, ratio], dim=1)
    far = (heads.apart(states) - much).square().sum() / max(1, 3 * len(pairs))
    return (loss * clear).sum() / clear.sum().clamp_min(1) + 2 * far, (int(right.sum()), int(clear.sum()))


def verdict_loss(heads: Heads, told: Tensor, nouns: Tensor, pairs: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """At the second of two phrases: what the answer will be."""
    second = nouns[pairs[:, 1]]
    logits, truth = heads.verdict(told[second[:, 0], second[:, 1]]), pairs[:, 2]
    loss = functional.cross_entropy(logits, truth, reduction="sum") / max(1, len(truth))
    return loss, (int((logits.argmax(-1) == truth).sum()), len(truth))


def gaze_loss(looks: Tensor, counts: Tensor, counted: Tensor) -> Tensor:
    """A counting word looks at each object that it counts as much as at the first token, whose share then tells the number.

    Likelihood alone hardly asks for even shares (it is flat near its best), so how far they are from even counts as well.
    looks: [h, C, 1 + n], logarithms; counted: [C, MOST, n], the patches of each object.
    """
    if not len(counts):
        return looks.new_zeros(())
    there, number = counted.any(dim=2), counts[:, 2]
    shares = looks[:, :, None, 1:].masked_fill(~counted, -1e4).logsumexp(dim=3)
    shares = torch.cat([looks[:, :, :1], shares], dim=2)
    asked = torch.cat([torch.ones_like(there[:, :1]), there], dim=1)
    even = -(number + 1).log()[:, None].expand_as(shares)
    uneven = functional.smooth_l1_loss(shares, even, reduction="none", beta=0.5)
    loss = ((uneven - shares) * asked).sum(dim=2) / (number + 1) + 4 * uneven[:, :, 0]
    return loss.mean()
