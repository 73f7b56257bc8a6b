"""Auxiliary losses on the states of question words: hints on the way to an answer. Used in training only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from divevlm.tiny.scene import GRID
from divevlm.tiny.training.batches import PATCH_LABELS, PLACE_LABELS, PRINTED, VERDICTS
from divevlm.tiny.words import COLORS, PATTERNS, SHAPES, SIGN

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
        gaze = gaze_loss(looks, counts)
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


def gaze_loss(looks: Tensor, counts: Tensor) -> Tensor:
    """A counting word looks at the middle of each object that it counts and, as much as at one of them, at the first token.

    The share of the first token then tells the number. looks: [h, C, 1 + n], logarithms.
    """
    cells = counts[:, 3:]
    there = cells >= 0
    at_objects = (looks.gather(2, (1 + cells.clamp_min(0)).expand(len(looks), -1, -1)) * there).sum(2)
    loss = -(looks[:, :, 0] + at_objects) / (counts[:, 2] + 1)
    return loss.sum() / max(1, loss.numel())
