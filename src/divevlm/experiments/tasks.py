"""The embedded tasks: questions about drawn scenes (extra `demo`). Others come from lmms-eval (`lmms/`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from divevlm.checks import require
from divevlm.media import Video

if TYPE_CHECKING:
    from divevlm_tiny.splits import ClipSample, Sample

__all__ = ["ALL", "CLIP_TASKS", "MIRRORS", "TASKS", "Item", "expand", "f1", "is_embedded", "item_of", "items", "right"]

ALL = "embedded"
MIRRORS = {  # what each stands for among the paper's benchmarks
    "existence": "POPE",
    "attribute": "GQA",
    "relation": "GQA",
    "counting": "MME",
    "reading": "TextVQA, OCRBench",
    "position": "MME",
    "comparison": "GQA",
    "detail": "VizWiz",
}
TASKS = tuple(MIRRORS)
CLIP_TASKS = ("motion", "direction", "order")
KNOWN = f"{ALL}, {', '.join(TASKS)}, or (videos) {', '.join(CLIP_TASKS)}"


@dataclass(frozen=True)
class Item:
    """One question. draw: makes its pictures (or clips) when they are needed; turns: a conversation instead of the text alone;
    stock: as lmms-eval's own models take it (pictures as they are, paths of videos)."""

    task: str
    sample: str
    text: str
    gold: str
    draw: Callable[[], list[Any]] = field(repr=False, compare=False)
    turns: list[dict[str, Any]] | None = field(default=None, repr=False, compare=False)
    stock: bool = False


def expand(names: Sequence[str]) -> list[str]:
    """ "embedded" is all eight tasks."""
    found = [task for name in names for task in (TASKS if name == ALL else (name,))]
    require(bool(found), "tasks", list(names), f"among {KNOWN}")
    return list(dict.fromkeys(found))


def is_embedded(name: str) -> bool:
    return name in (ALL, *TASKS, *CLIP_TASKS)


def items(
    names: Sequence[str], limit: int = 125, split: str = "validation", sizes: Sequence[tuple[int, int]] = ()
) -> list[Item]:
    """The first `limit` questions of each task, in the order of the split, so that those about one scene stay together.

    sizes: of the pictures, instead of 24 x 24 patches
    """
    wanted = expand(names)
    unknown = [name for name in wanted if not is_embedded(name)]
    require(not unknown, "tasks", ",".join(unknown), f"among {KNOWN}")
    require(limit >= 1, "limit", limit, "at least 1")
    pictures, clips = ([task for task in wanted if task in kind] for kind in (TASKS, CLIP_TASKS))
    return (_still(pictures, limit, split, sizes) if pictures else []) + (_moving(clips, limit, split) if clips else [])


def _still(wanted: Sequence[str], limit: int, split: str, sizes: Sequence[tuple[int, int]]) -> list[Item]:
    from divevlm_tiny import questions

    total = limit * len(TASKS)
    while True:
        samples = questions(split, total, sizes)
        have = Counter(sample.task for sample in samples)
        if all(have[task] >= limit for task in wanted):
            break
        total += max(len(TASKS), total // 8)
    found: list[Item] = []
    left = dict.fromkeys(wanted, limit)
    for sample in samples:
        if left.get(sample.task):
            left[sample.task] -= 1
            found.append(item_of(sample, f"{split}-{'sizes-' if sizes else ''}{sample.number}"))
    return found


def item_of(sample: Sample | ClipSample, name: str) -> Item:
    return Item(sample.task, name, sample.text, sample.answer, partial(_shown, sample))


def _moving(wanted: Sequence[str], limit: int, split: str) -> list[Item]:
    from divevlm_tiny.splits import clip_stream

    found: list[Item] = []
    left = dict.fromkeys(wanted, limit)
    for one in clip_stream(split):
        if left.get(one.task):
            left[one.task] -= 1
            found.append(item_of(one, f"{split}-clip-{one.seed}"))
        if not any(left.values()):
            return found
    raise AssertionError("seeds do not end")


def _shown(sample: Sample | ClipSample) -> list[Any]:
    if hasattr(sample, "image"):
        return [sample.image]
    return [Video(sample.frames, list(range(len(sample.frames))), len(sample.frames), 2.0)]


def right(prediction: str, gold: str) -> bool:
    """The same words, whatever their case and a full stop."""
    return _plain(prediction) == _plain(gold)


def _plain(text: str) -> str:
    return " ".join(text.lower().strip().rstrip(".").split())


def f1(predictions: Sequence[str], golds: Sequence[str]) -> float:
    """Of "yes", in percent: POPE's measure."""
    pairs = [(_plain(p) == "yes", _plain(g) == "yes") for p, g in zip(predictions, golds, strict=True)]
    true = sum(p and g for p, g in pairs)
    return 200 * true / max(1, sum(p for p, _ in pairs) + sum(g for _, g in pairs))
