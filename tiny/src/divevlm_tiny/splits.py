"""Train, validation, test and shift: ranges of seeds that never meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from random import Random

import numpy as np
from PIL import Image

from divevlm_tiny.ask import NamedScene, Question, ask
from divevlm_tiny.clips import MovingScene, ask_clip, clip
from divevlm_tiny.scene import GRID, Scene, scene
from divevlm_tiny.words import TASKS

SPAN = 10**12
SPLITS = {"train": 0, "validation": 1, "test": 2, "shift": 3}
PER_SCENE = 4  # questions about one image
SIZES = ((24, 24), (16, 24), (24, 18), (20, 12), (16, 32), (32, 16))  # of pictures for tiny-qwen2vl, in patches
CLIP_SIZES = ((12, 12), (12, 16), (16, 12))


class WithQuestion:
    """What pictures and clips with a question have in common."""

    question: Question

    @property
    def task(self) -> str:
        return self.question.task

    @property
    def text(self) -> str:
        return self.question.text

    @property
    def answer(self) -> str:
        return self.question.answer


@dataclass(frozen=True)
class Sample(WithQuestion):
    """One question about one picture; `patches` are the numbers of the visual tokens that show what it asks about."""

    split: str
    number: int
    scene: Scene
    question: Question

    @property
    def seed(self) -> int:
        return self.scene.seed

    @property
    def image(self) -> Image.Image:
        return Image.fromarray(self.scene.pixels)

    @property
    def patches(self) -> list[int]:
        return sorted({patch for index in self.question.items for patch in self.scene.patches(index)})


def first_seed(split: str) -> int:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return SPLITS[split] * SPAN


def questions(split: str = "validation", n: int = 1000, sizes: Sequence[tuple[int, int]] = ()) -> list[Sample]:
    """The first n questions of a split: four about each picture, the eight tasks in turn, answers balanced within a task.

    sizes: rows and columns of patches, in turn, instead of 24 x 24
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    return list(islice(_stream(split, sizes), n))


def _stream(split: str, sizes: Sequence[tuple[int, int]]) -> Iterator[Sample]:
    seen: Counter[tuple[str, str]] = Counter()
    numbers, shift, turn = count(), split == "shift", 0
    for seed in count(first_seed(split)):
        rows, columns = sizes[seed % len(sizes)] if sizes else (GRID, GRID)
        picture = scene(seed, many=shift, unseen=shift, rows=rows, columns=columns, whole=bool(sizes))
        named, random = NamedScene(picture), Random(f"questions {seed}")
        for task in TASKS[turn % 8 :][:PER_SCENE]:
            question = ask(named, task, random, seen)
            if question is not None:
                yield Sample(split, next(numbers), picture, question)
        turn += PER_SCENE


@dataclass(frozen=True)
class ClipSample(WithQuestion):
    """One question about one clip of eight frames."""

    split: str
    seed: int
    clip: MovingScene
    question: Question

    @property
    def frames(self) -> np.ndarray:
        """[8, h, w, 3]"""
        return self.clip.pixels


def clip_questions(split: str = "validation", n: int = 300) -> list[ClipSample]:
    """The first n questions of a split about clips of several sizes: what moves, where to, and which comes first."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    return list(islice(clip_stream(split), n))


def clip_stream(split: str) -> Iterator[ClipSample]:
    for seed in count(first_seed(split)):
        shown = clip(seed, *CLIP_SIZES[seed % len(CLIP_SIZES)])
        if shown is not None:
            for question in ask_clip(shown, Random(f"questions {seed}")):
                yield ClipSample(split, seed, shown, question)
