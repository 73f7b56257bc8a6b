"""Whom should kept tokens speak for, how loudly, and to whom? Variants of `proportional` that are not in the engine.

    python -m training.proportional --model llava --keep 64,16 --limit 400 --out runs/variants.json

Writes what `divevlm bench accuracy --out` writes (read it with `divevlm bench compare --against plain`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from divevlm_tiny.splits import SIZES, clip_questions, questions
from torch import Tensor

from divevlm.bench.accuracy import Mark, chunks, majority, row
from divevlm.checks import keeps, names
from divevlm.core.cluster import merged_sizes
from divevlm.core.reference import Residuals
from divevlm.core.rule import Rule
from divevlm.core.top import unit
from divevlm.engine import decide, vision
from divevlm.engine.passes import Pass
from divevlm.engine.signals import Gatherer
from divevlm.experiments.answering import Answerer
from divevlm.experiments.loading import machine
from divevlm.experiments.settings import Setting
from divevlm.experiments.tasks import item_of
from divevlm.loading import load
from divevlm.methods.base import Needs
from divevlm.methods.dive import DIVE
from divevlm.models import family_of
from divevlm.planning import VANILLA
from divevlm.terminal import one_line, progress

Sizes = Callable[..., Tensor]  # as divevlm.engine.decide._sizes


def capped(most: float) -> Any:
    """A token stands for at most so many."""
    return _sizes(lambda told, *given: told(*given).clamp_max(most))


def shuffled() -> Any:
    """A control: the sizes of others."""

    def change(told: Sizes, method: Any, group: Any, selection: Any, signals: Any, sizes: Tensor) -> Tensor:
        sizes = told(method, group, selection, signals, sizes)
        kept = group.tokens[selection.indices.cpu()]
        sizes[kept] = sizes[kept][torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))]
        return sizes

    return _sizes(change)


def residual() -> Any:
    """A dropped token belongs to the pick that took most of its energy, not to the most similar one."""

    def owner(signals: Any, selection: Any) -> Tensor:
        state = Residuals(signals.visual.float(), signals.text.float(), Rule())
        taken = []
        for pick in selection.order.tolist():
            before = state.x.square().sum(dim=1)
            state.feed_back(pick)
            taken.append(before - state.x.square().sum(dim=1))
        owners: Tensor = selection.order.cpu()[torch.stack(taken).argmax(dim=0).cpu()]
        return owners

    return _owned(owner)


def same_frame() -> Any:
    """The most similar kept token of the same frame, where there is one."""

    def owner(signals: Any, selection: Any) -> Tensor:
        kept, rows, frames = selection.indices.cpu(), unit(signals.hidden).cpu(), signals.cells[:, 0]
        cosine = rows @ rows[kept].T
        other = frames[:, None] != frames[kept]
        owners: Tensor = kept[cosine.masked_fill(other & ~other.all(dim=1, keepdim=True), -2).argmax(dim=1)]
        return owners

    return _owned(owner)


@contextmanager
def entropy() -> Iterator[None]:
    """ERA's estimate (Wang et al., arXiv 2606.31982; by the overview picture of its repository, there is no code): a kept
    token stands for 1 + the sum of w over its group, w in proportion to 1 - the entropy of a token's attention over the heads
    of the tower. Here w is 1 on average over what was dropped, so that sizes add up to N: the picture does not say."""

    def change(_: Sizes, method: Any, group: Any, selection: Any, signals: Any, sizes: Tensor) -> Tensor:
        kept, weight = selection.indices.cpu(), signals.vision.saliency.cpu().clone()
        dropped = torch.ones(len(weight), dtype=torch.bool)
        dropped[kept] = False
        weight /= weight[dropped].mean()
        weight[kept] = 1
        sizes[group.tokens] = 0
        sizes[group.tokens[kept]] = merged_sizes(signals.hidden.cpu(), kept, weight)
        return sizes

    needs = patch.object(DIVE, "needs", Needs(vision=("saliency",)))
    with needs, patch.object(vision, "saliency", certainty), _sizes(change):
        yield


def certainty(heads: Any, cls: bool, given: Any) -> Tensor:
    """1 - entropy over heads (of 1) of each patch's attention: [tiles, patches, 1], times a million."""
    q, k = heads.q.double() * heads.scale, heads.k.double()
    if cls:
        attention = (q[:, :, :1] @ k.mT).softmax(dim=-1)[:, :, 0, 1:]  # [tiles, heads, patches]
    else:
        ends = [0, k.shape[2]] if given.get("cu_seqlens") is None else given["cu_seqlens"].tolist()
        parts = [(q[:, :, a:b] @ k[:, :, a:b].mT).softmax(dim=-1).mean(dim=2) for a, b in pairwise(ends)]
        attention = torch.cat(parts, dim=-1)
    logs = attention.log_softmax(dim=1)
    uncertain = -(logs.exp() * logs).sum(dim=1) / math.log(logs.shape[1])
    certain: Tensor = 1e6 * (1 - uncertain)
    return certain.float()[..., None]


def turned_prompt() -> Any:
    """A prompt that misleads: for the choice its states are turned around."""

    def signals(told: Callable[..., Any], self: Gatherer, group: Any) -> Any:
        given = told(self, group)
        return replace(given, text=-given.text)

    return _wrapped(Gatherer, "signals", signals)


def words_only() -> Any:
    """Visual tokens look at each other without the bias."""

    def arguments(told: Callable[..., dict[str, Any]], self: Pass, stage: Any, *rest: Any) -> dict[str, Any]:
        given = told(self, stage, *rest)
        if stage.columns.bias is not None:
            assert self.prefill is not None
            visual = torch.zeros_like(self.present)
            for number, layout in enumerate(self.prefill.layouts):
                visual[number, layout.positions] = True
            mask, bias = given["attention_mask"], stage.columns.bias[:, None, None]
            given["attention_mask"] = torch.where(visual.gather(1, stage.index)[:, None, :, None], mask - bias, mask)
        return given

    return _wrapped(Pass, "_arguments", arguments)


def from_block(first: int) -> Any:
    """Blocks before this one have no bias."""

    def enter(told: Callable[..., Tensor], self: Pass, block: int, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        hidden = told(self, block, hidden, kwargs)
        bias = self.stages[-1].columns.bias if self.stages else None
        if bias is not None and block < first:
            kwargs["attention_mask"] = kwargs["attention_mask"] - bias[:, None, None]
        return hidden

    return _wrapped(Pass, "enter", enter)


# name -> `proportional` of the method (None: as it has it), and what is changed around it
VARIANTS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "plain": (False, nullcontext),
    "groups": (True, nullcontext),
    "square root": (0.5, nullcontext),
    "uniform": ("uniform", nullcontext),
    "measured": ("measured", nullcontext),
    "shuffled": (True, shuffled),
    "at most 4": (True, lambda: capped(4)),
    "at most 16": (True, lambda: capped(16)),
    "residual": (True, residual),
    "entropy": (True, entropy),
    "same frame": (True, same_frame),
    "words only": (True, words_only),
    "measured for words only": ("measured", words_only),
    "from block 4": (True, lambda: from_block(4)),
    "from block 6": (True, lambda: from_block(6)),
    "as it is": (None, nullcontext),
    "turned prompt": (None, turned_prompt),
}


@contextmanager
def _wrapped(owner: Any, name: str, new: Callable[..., Any]) -> Iterator[None]:
    told = getattr(owner, name)
    with patch.object(owner, name, lambda *args: new(told, *args)):
        yield


def _sizes(change: Callable[..., Tensor]) -> Any:
    return _wrapped(decide, "_sizes", change)


def _owned(owner: Callable[[Any, Any], Tensor]) -> Any:
    """owner: signals, selection -> [n] the kept candidate that each one belongs to"""

    def change(_: Sizes, method: Any, group: Any, selection: Any, signals: Any, sizes: Tensor) -> Tensor:
        to, before, kept = owner(signals, selection), sizes[group.tokens], selection.indices.cpu()
        to[kept] = kept
        sizes[group.tokens] = torch.zeros_like(before).index_add_(0, to, before)
        return sizes

    return _sizes(change)


def measure(
    method: str, variants: Sequence[str], budgets: Sequence[int | float], n: int, split: str, model: str, clips: bool
) -> dict[str, Any]:
    answerer = Answerer(*load(model))
    sizes = () if family_of(answerer.model).plain else SIZES
    samples: Sequence[Any] = clip_questions(split, n) if clips else questions(split, n, sizes)
    marks: dict[tuple[str, int | float], list[Mark]] = {(VANILLA, 0): []}
    marks |= {(variant, keep): [] for variant in variants for keep in budgets}
    done = 0
    with progress("variants of proportional") as tick:
        for some in chunks(samples):
            items = [item_of(sample, str(done + i)) for i, sample in enumerate(some)]
            for (variant, keep), found in marks.items():
                if variant == VANILLA:
                    answers = answerer.forced(items, None)
                else:
                    proportional, change = VARIANTS[variant]
                    ready = Setting(method, keep).ready(answerer.model)
                    assert ready is not None
                    given = {} if proportional is None else {"proportional": proportional}
                    with change():
                        answers = answerer.forced(items, replace(ready, **given))
                found += [
                    Mark(sample, bool(answer.score), answer.likelihood or 0.0, flops=answer.flops)
                    for sample, answer in zip(some, answers, strict=True)
                ]
            done += len(some)
            tick(f"{done} of {n} questions", done / n)
    rows = [row(variant, keep, found, marks[VANILLA, 0]) for (variant, keep), found in marks.items()]
    asked = {"model": model, "split": split, "clips": clips, "n": n, "method": method}
    return {**asked, "rows": rows, "majority": majority(samples), "machine": machine()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llava")
    parser.add_argument("--method", default="dive")
    parser.add_argument("--variant", default=",".join(VARIANTS), help="names joined by commas")
    parser.add_argument("--keep", default="64,16")
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--split", default="validation")
    parser.add_argument("--clips", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    variants = names("--variant", options.variant)
    unknown = [variant for variant in variants if variant not in VARIANTS]
    if unknown:
        raise ValueError(f"--variant must be among {', '.join(VARIANTS)}, got {', '.join(unknown)!r}")
    asked = options.limit, options.split, options.model, options.clips
    result = measure(options.method, variants, keeps(options.keep), *asked)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for line in result["rows"]:
        figures = f"{line['accuracy']:5.1f} ± {line['error']:.1f}  {line['likelihood']:.3f}"
        print(f"{line['method']:24} {line['keep'] or '-':>6} {figures}")


if __name__ == "__main__":
    raise SystemExit(one_line(main))
