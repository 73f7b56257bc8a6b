"""Why counting suffers under DIVE: `python -m training.counting [--n 1000] [--keep 64,16] [--swap 0,4,8]`.

tiny-llava reads a number from the shares of attention that its counting word gives to the objects. Two questions: how much of
what that word looks at in a full run is still there, and what happens if the tokens that it looks at most take the places of
DIVE's last picks?
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from divevlm_tiny.shipped import load
from divevlm_tiny.splits import Sample, questions
from torch import Tensor

from divevlm.bench.accuracy import chunks
from divevlm.checks import at_least, counts
from divevlm.core.selection import Selection
from divevlm.experiments.answering import Answerer
from divevlm.experiments.tasks import Item, item_of
from divevlm.methods.base import Signals
from divevlm.methods.dive import DIVE
from divevlm.terminal import one_line
from training.batches import pack
from training.forward import decode, encode
from training.score import NUMBERS


@dataclass(frozen=True, kw_only=True)
class Swapped(DIVE):
    """DIVE whose last picks give way to these tokens."""

    instead: tuple[tuple[int, ...], ...] = ()  # of each question

    def select(self, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
        made = []
        for found, these in zip(super().select(groups, keeps), self.instead, strict=True):
            kept = [*these, *(token for token in found.order.tolist() if token not in these)][: len(found.order)]
            made.append(Selection(torch.tensor(kept), torch.ones(len(kept))))
        return made


def gaze(model: Any, samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """How much each question's counting word looks at every visual token, [B, N], mean over the heads that count; and which
    tokens show each object that counts, [B, 4, N]."""
    scenes = [sample.scene for sample in samples]
    made: dict[str, Any] = pack([[sample.question] for sample in samples], scenes, NUMBERS)
    made["places"] = torch.arange(576).expand(len(samples), -1)
    made["hidden"] = torch.zeros(len(samples), dtype=torch.bool)
    with torch.no_grad():
        visual, _, _ = encode(model, torch.from_numpy(np.stack([scene.pixels for scene in scenes])), made["places"])
    looks = decode(model, NUMBERS, visual, made).looks
    assert looks is not None
    return looks.detach().exp().mean(dim=0)[:, 1:], made["counted"]


@torch.inference_mode()
def told(answerer: Answerer, items: Sequence[Item], method: DIVE) -> tuple[list[int], list[list[int]]]:
    """The likeliest of the four numbers for each question, and what was kept."""
    inputs, labels = answerer.with_gold(items)
    with answerer.under(method) as session:
        logits = answerer.model(**inputs, labels=labels).logits  # labels: so that the answer is no part of the prompt
    assert session is not None
    first = (labels != -100).int().argmax(dim=1)  # of the answer
    rows = logits[torch.arange(len(logits)), first - 1][:, [NUMBERS[word] for word in "1234"]]
    return (1 + rows.argmax(dim=1)).tolist(), [sample.kept for sample in session.report.samples]


def measure(model: Any, processor: Any, samples: list[Sample], keep: int, swaps: Sequence[int]) -> list[dict[str, Any]]:
    """For each number of swapped tokens: shares of questions told right, too low, too high; and how much of the attention on
    the objects is left, on the mean and on the worst one, where the answer is right and where it is wrong."""
    found: dict[int, list[tuple[int, float, float]]] = {swap: [] for swap in swaps}
    answerer = Answerer(model, processor)
    for some in chunks(samples):
        items = [item_of(sample, str(sample.number)) for sample in some]
        looks, counted = gaze(model, some)
        for swap in swaps:
            most = looks.topk(max(1, swap), dim=1).indices[:, :swap]
            numbers, kept = told(answerer, items, Swapped(keep=keep, instead=tuple(map(tuple, most.tolist()))))
            for b, sample in enumerate(some):
                here = torch.zeros(576, dtype=torch.bool)
                here[kept[b]] = True
                whole, left = (part.float() @ looks[b] for part in (counted[b], counted[b] & here))
                shares = (left / whole)[: int(sample.answer)]
                found[swap].append((numbers[b] - int(sample.answer), float(shares.mean()), float(shares.min())))
    return [{"keep": keep, "swap": swap, **_summary(rows)} for swap, rows in found.items()]


def _summary(rows: list[tuple[int, float, float]]) -> dict[str, Any]:
    off = torch.tensor([row[0] for row in rows])
    made: dict[str, Any] = {
        name: 100 * float(there.float().mean())
        for name, there in (("right", off == 0), ("too low", off < 0), ("too high", off > 0))
    }
    for name, wrong in (("left where right", False), ("left where wrong", True)):
        some = [(mean, worst) for far, mean, worst in rows if bool(far) == wrong]
        made[name] = [sum(values) / len(some) for values in zip(*some, strict=True)] if some else None
    return made


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--n", type=int, default=1000, help="questions of the validation split, of which an eighth count"
    )
    parser.add_argument("--keep", default="64,16")
    parser.add_argument("--swap", default="0,4,8", help="how many of the most looked-at tokens are put in")
    options = parser.parse_args(arguments)
    at_least("--n", options.n, 1)
    keeps, swaps = counts("--keep", options.keep, 1, 576), counts("--swap", options.swap, 0, 576)
    model, processor = load("llava")
    samples = [sample for sample in questions("validation", options.n) if sample.task == "counting"]
    print(f"{len(samples)} questions")
    for keep in keeps:
        for row in measure(model, processor, samples, keep, swaps):
            shown = ", ".join(f"{name} {row[name]:.1f} %" for name in ("right", "too low", "too high"))
            left = "; ".join(
                f"{name}: mean {row[name][0]:.2f}, worst {row[name][1]:.2f}"
                for name in ("left where right", "left where wrong")
                if row[name]
            )
            print(f"keep {row['keep']}, {row['swap']} swapped: {shown}; {left}", flush=True)


if __name__ == "__main__":
    raise SystemExit(one_line(main))
