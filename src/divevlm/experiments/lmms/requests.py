"""What lmms-eval hands over, read: requests and how to generate, pictures and videos, gold answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import av
import numpy as np
from lmms_eval.models.model_utils.load_video import read_video
from transformers.image_utils import OPENAI_CLIP_MEAN

from divevlm.checks import require
from divevlm.experiments.stock import padded
from divevlm.media import Video

FRAMES = 32  # of a video, evenly spaced


def place(request: Any, numbers: Mapping[str, Sequence[int]]) -> tuple[str, str]:
    """Task and sample. args: text, then options and a function in either order, number, task, split

    numbers: of a task's documents in its whole data set, where it was cut to some of them
    """
    number, task = request.args[3], request.args[4]
    return task, str(numbers[task][number] if task in numbers else number)


def options(request: Any) -> dict[str, Any]:
    return next(one for one in request.args if isinstance(one, dict))


def batches(requests: Sequence[Any], size: int) -> Iterator[list[int]]:
    """Numbers of requests, in their order; a batch has one task and one way to generate."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault((request.args[4], repr(sorted(options(request).items()))), []).append(number)
    for group in groups.values():
        for at in range(0, len(group), size):
            yield group[at : at + size]


def decoding(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of generate(): greedy unless the task asks for a temperature."""
    known = {key: given[key] for key in ("num_beams", "temperature", "top_p") if given.get(key) is not None}
    if not known.get("temperature"):
        return {"do_sample": False, "num_beams": known.get("num_beams", 1)}
    return {"do_sample": True, **known}


def cut(text: str, until: str | Sequence[str] | None) -> str:
    for stop in [until] if isinstance(until, str) else until or []:
        text = text.split(stop)[0] if stop else text
    return text.strip()


def media(visuals_of: Callable[[Any], Any], document: Any, plain: bool, pad: bool, frames: int = FRAMES) -> list[Any]:
    """What a task shows with a document. plain: as it is, for the stock models; pad: pictures to squares"""
    found = visuals_of(document) or []
    if pad:
        found = [one if isinstance(one, str) else padded(one, OPENAI_CLIP_MEAN) for one in found]
    return list(found) if plain else [shown(one, frames) for one in found]


def shown(visual: Any, frames: int = FRAMES) -> Any:
    """A picture as it is; a path is a video."""
    return clip(visual, frames) if isinstance(visual, str) else visual.convert("RGB")


def clip(path: str, most: int) -> Video:
    """At most so many frames, evenly spaced from the first to the last as lmms-eval's own models take them, with the numbers and
    the rate that they have in the file."""
    frames = read_video(path, num_frm=most)
    with av.open(path) as container:
        stream = container.streams.video[0]
        total, rate = stream.frames, float(stream.average_rate or 1)
    if len(frames) > most or not total:  # of webm and mkv it gives every frame
        total = len(frames)
        frames = frames[_spaced(total, most)]
    return Video(frames, _spaced(total, most)[: len(frames)], total, rate)  # a file may have fewer than it says


def _spaced(total: int, most: int) -> list[int]:
    found: list[int] = np.linspace(0, total - 1, min(total, most), dtype=int).tolist()
    return found


def gold(task: Any, name: str, document: dict[str, Any]) -> str:
    """The answer as text; of several the most frequent, the first among equals.

    TextVQA, VizWiz and VQAv2 name a column "answer" that their data have as "answers" only.
    """
    column = task.config.doc_to_target
    if isinstance(column, str) and column not in document and f"{column}s" in document:
        found = document[f"{column}s"]
    else:
        missing = isinstance(column, str) and column not in document and "{" not in column
        found = None if missing else task.doc_to_target(document)
    several = found if isinstance(found, (list, tuple)) else [found]
    texts = [one.get("answer") if isinstance(one, dict) else one for one in several]
    good = bool(texts) and all(isinstance(one, str) for one in texts)
    require(good, "tasks", name, "tasks whose answers are texts, for teacher forcing")
    return str(Counter(texts).most_common(1)[0][0])
