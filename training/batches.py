"""Batches: pictures, several questions about each, and labels for every patch. A batch is a pure function of its numbers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
from divevlm_tiny.ask import NamedScene, Question, ask, count
from divevlm_tiny.clips import CLIP_TASKS
from divevlm_tiny.draw import text_mask
from divevlm_tiny.scene import GRID, PATCH, Scene, SceneItem, scene
from divevlm_tiny.splits import SPAN, first_seed
from divevlm_tiny.words import CHARACTERS, COLORS, DIGITS, PATTERNS, SHAPES, SIGN, SIGN_WORDS, TASKS
from torch import Tensor

IGNORE = -100
OFTEN = ("relation", "comparison") * 2 + ("existence", "reading", "detail") * 3 + ("attribute",)  # besides one of each
ALL_TASKS = (*TASKS, *CLIP_TASKS)
RARER = {
    "1": 0.8,
    "2": 0.6,
    "3": 0.35,
}  # of most kinds a picture shows one or two: so many of these questions are left out
MOST = 4  # objects that a question counts
COUNTED = {1: 0.4, 2: 0.6, 3: 1.0, 4: 1.0}  # where every kind is counted: so many of these questions are asked
VERDICTS = ("yes", "no", "left", "right", "above", "below", "first", "second")
PRINTED = (*DIGITS, *SIGN_WORDS)
SIZES = (17, 22, 30, 36, 43, 52, 62, 74)  # upper ends of the size classes, pixels
PATCH_LABELS = {"shape": 9, "color": 8, "pattern": 3, "printed": 30, "character": 36, "size": 9, "centre": 1}
PLACE_LABELS = {"row": GRID, "column": GRID}
SHAPE_NUMBER = {name: i + 1 for i, name in enumerate((*SHAPES, SIGN))}
COLOR_NUMBER = {name: i + 1 for i, name in enumerate(COLORS)}
PATTERN_NUMBER = {name: i + 1 for i, name in enumerate(PATTERNS)}
PRINTED_NUMBER = {name: i + 1 for i, name in enumerate(PRINTED)}


@dataclass(frozen=True)
class Phase:
    """A stretch of training: windows of `rows` patches, `batch` of them with `questions` each (0: vision only)."""

    name: str
    rows: int
    batch: int
    questions: int
    steps: int
    rate: tuple[float, float] = (1.0, 1.0)  # factor on the learning rates, at the start and at the end
    signs: float = 0.0  # share of pictures that show mostly signs
    frozen: bool = False  # questions train the language model alone, and every second step the tower alone
    fours: float = 0.0  # share of pictures that are the first of six to show four of a kind
    counting: int = 5  # how many more questions of a round count; see RARER
    every: bool = False  # count every kind that a picture shows; see COUNTED
    turns: tuple[tuple[int, int, int, float], ...] = ()  # other rows, batch, questions and signs, step by step in turn

    def turned(self, step: int) -> Phase:
        """What is shown at a step: itself, or one of its turns."""
        turn = step % (len(self.turns) + 1)
        if not turn:
            return self
        rows, images, questions, signs = self.turns[turn - 1]
        return replace(self, rows=rows, batch=images, questions=questions, signs=signs)


def size_class(size: int) -> int:
    return 1 + sum(size > edge for edge in SIZES)


def centre(picture: Scene, item: SceneItem) -> int:
    """The patch in the middle of an object."""
    return (item.y // PATCH - picture.row) * picture.columns + item.x // PATCH - picture.column


def patch_labels(picture: Scene) -> dict[str, np.ndarray]:
    """What each patch shows, [rows * columns] per kind: 0 nothing, IGNORE where an object only grazes it."""
    cells = picture.rows * picture.columns
    labels = {kind: np.zeros(cells, dtype=np.int64) for kind in PATCH_LABELS}
    best = np.zeros(cells, dtype=np.int64)
    enough = 16 * PATCH * PATCH // 6
    for index, item in enumerate(picture.items):
        cover = picture.cover(index).ravel()
        mine = cover > best
        best[mine] = cover[mine]
        values = {
            "shape": SHAPE_NUMBER[item.shape],
            "color": COLOR_NUMBER[item.color],
            "pattern": PATTERN_NUMBER[item.pattern],
            "printed": PRINTED_NUMBER.get(item.text, 0),
            "character": IGNORE if item.text else 0,
            "size": size_class(item.size),
            "centre": 0,
        }
        grazed = mine & (cover < enough)
        strong = mine & ~grazed
        for kind, value in values.items():
            labels[kind][grazed] = IGNORE
            labels[kind][strong] = value
            labels[kind][centre(picture, item)] = value  # also where it is the hole of a ring
        labels["centre"][centre(picture, item)] = 1
        if item.text:
            _letters(labels["character"].reshape(picture.rows, picture.columns), picture, index)
    return labels


def _letters(labels: np.ndarray, picture: Scene, index: int) -> None:
    """Label the patches that show a third of a letter of a sign, or of themselves."""
    item = picture.items[index]
    left, top = item.box[0] + 4 - picture.column * PATCH, item.box[1] + 4 - picture.row * PATCH
    best = np.zeros(labels.shape)
    for letter, (first, last) in zip(item.text, text_mask(item.text, item.glyphs)[1], strict=True):
        across, down = (
            np.clip(np.minimum(end, edges + PATCH) - np.maximum(start, edges), 0, None)
            for start, end, edges in (
                (left + first, left + last, PATCH * np.arange(picture.columns)),
                (top, top + item.glyphs, PATCH * np.arange(picture.rows)),
            )
        )
        shown = down[:, None] * across[None, :]
        enough = (shown >= min(item.glyphs * (last - first), PATCH * PATCH) / 3) & (shown > best)
        best[enough] = shown[enough]
        labels[enough] = CHARACTERS.index(letter.upper()) + 1


def fine_labels(picture: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Which 2 x 2 pixel cells of each patch belong to an object [n, 49], and the way to its centre in object sizes [n, 2]."""
    rows, columns = picture.rows, picture.columns
    cells = picture.figure().reshape(rows, 7, 2, columns, 7, 2).sum(axis=(2, 5)) >= 32
    best = np.zeros(rows * columns, dtype=np.int64)
    way = np.zeros((rows * columns, 2), dtype=np.float32)
    y, x = np.divmod(np.arange(rows * columns), columns)
    for index, item in enumerate(picture.items):
        cover = picture.cover(index).ravel()
        mine = cover > best
        best[mine] = cover[mine]
        middle = np.stack([(y + picture.row) * PATCH + 7 - item.y, (x + picture.column) * PATCH + 7 - item.x], axis=1)
        way[mine] = (middle / max(item.size, PATCH))[mine]
    return cells.transpose(0, 2, 1, 3).reshape(rows * columns, 49), way


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]+", text.lower())


def batch(numbers: dict[str, int], phase: Phase, seed: int, step: int) -> dict[str, Any]:
    """The batch of one step. numbers: word -> token."""
    random = Random(f"batch {seed} {step}")
    if phase.frozen and step % 2:
        rows, images = random.choice(((8, 48), (12, 22)))
        phase = replace(phase, rows=rows, batch=images, questions=0, signs=0.3)
    phase = phase.turned(step)
    seen: Counter[tuple[str, str]] = Counter()
    pictures: list[Scene] = []
    asked: list[list[Question]] = []
    for _ in range(phase.batch):
        view = viewed(random, phase, rows=phase.rows, columns=phase.rows)
        pictures.append(view.scene)
        asked.append(asked_of(view, phase, random, seen))
    made: dict[str, Any] = {
        "pixels": torch.from_numpy(np.stack([picture.pixels for picture in pictures])),
        "places": torch.tensor([_places(picture) for picture in pictures]),
        "present": _present(pictures),
        "hidden": torch.tensor([random.random() < 0.5 for _ in pictures]),
    }
    labels = [patch_labels(picture) for picture in pictures]
    made["labels"] = {kind: torch.from_numpy(np.stack([one[kind] for one in labels])) for kind in PATCH_LABELS}
    fine = [fine_labels(picture) for picture in pictures]
    made["mask"], made["way"] = (torch.from_numpy(np.stack(part)) for part in zip(*fine, strict=True))
    made["labels"] |= {"row": made["places"] // GRID + 1, "column": made["places"] % GRID + 1}
    if phase.questions:
        made.update(pack(asked, pictures, numbers))
        made["frozen"] = phase.frozen
    return made


def viewed(random: Random, phase: Phase, **window: Any) -> NamedScene:
    """A picture of the training split; in some phases it more often shows four of a kind."""
    signs, tries = random.random() < phase.signs, 6 if random.random() < phase.fours else 1
    for _ in range(tries):
        view = NamedScene(scene(first_seed("train") + random.randrange(SPAN), signs=signs, **window))
        if 4 in (*view.shapes.values(), *view.colors.values()):
            break
    return view


def asked_of(view: NamedScene, phase: Phase, random: Random, seen: Counter[tuple[str, str]]) -> list[Question]:
    """Different questions about a picture, at most those of the phase; `seen` keeps their answers in balance."""
    found: dict[str, Question] = {}
    tasks: list[str] = []
    round_ = (*TASKS, *OFTEN, *("counting",) * phase.counting)
    for _ in range(phase.questions):
        tasks = tasks or random.sample(round_, len(round_))
        question = ask(view, tasks.pop(), random, seen, tries=3)
        skipped = RARER.get(question.answer, 0) if question is not None and question.task == "counting" else 0
        if question is not None and random.random() >= skipped:
            found.setdefault(question.text, question)
    if phase.every:
        kinds = [(shape, "", n) for shape, n in view.shapes.items()] + [
            ("", color, n) for color, n in view.colors.items()
        ]
        counted = [count(view, *kind) for *kind, n in kinds if random.random() < COUNTED.get(n, 0)]
        found |= {question.text: question for question in counted}
    return list(found.values())


def tokens(question: Question, numbers: dict[str, int]) -> list[int]:
    """Question, "ASSISTANT:", answer and end: what follows the image in a prompt."""
    return [numbers[word] for word in (*words(question.text), "assistant", ":", *words(question.answer), "</s>")]


def pack(
    asked: list[list[Question]],
    pictures: list[Scene],
    words_of: dict[str, int],
    times: list[tuple[int, ...]] | None = None,
) -> dict[str, Tensor]:
    """Questions of one picture side by side. `segment` says which question a token belongs to (-1: padding).

    `counts` has a row for each counting word (row of the batch, place, number), `counted` the patches of its objects.
    times: when each object of a clip appears.
    """
    rows = [[(question, tokens(question, words_of)) for question in row] for row in asked]
    length = max(1, max(sum(len(ids) for _, ids in row) for row in rows))
    shape = (len(rows), length)
    ids, segment = torch.zeros(shape, dtype=torch.long), torch.full(shape, -1)
    offset, target = torch.zeros(shape, dtype=torch.long), torch.full(shape, IGNORE)
    task = torch.full(shape, -1)
    nouns: list[list[int]] = []
    counts: list[list[int]] = []
    counted: list[np.ndarray] = []
    pairs: list[list[int]] = []
    for b, row in enumerate(rows):
        at = 0
        for number, (question, numbers) in enumerate(row):
            end = at + len(numbers)
            ids[b, at:end], segment[b, at:end] = torch.tensor(numbers), number
            offset[b, at:end] = torch.arange(len(numbers))
            answer = len(words(question.answer)) + 1
            target[b, end - answer - 1 : end - 1] = torch.tensor(numbers[-answer:])
            task[b, end - answer - 1 : end - 1] = ALL_TASKS.index(question.task)
            when = times[b] if times else (0,) * len(pictures[b].items)
            nouns += [[*_noun(b, at + place, pictures[b], index), when[index]] for place, index in question.nouns]
            if len(question.nouns) == 2:
                pairs.append([len(nouns) - 2, len(nouns) - 1, VERDICTS.index(question.balance)])
            if question.task == "counting":
                counts.append([b, at + words(question.text).index("are") - 1, len(question.items)])
                counted.append(_shown(pictures[b], question.items))
            at = end
    return {
        "ids": ids,
        "segment": segment,
        "offset": offset,
        "target": target,
        "task": task,
        "nouns": torch.tensor(nouns, dtype=torch.long).view(-1, 12),
        "pairs": torch.tensor(pairs, dtype=torch.long).view(-1, 3),
        "counts": torch.tensor(counts, dtype=torch.long).view(-1, 3),
        "counted": torch.from_numpy(np.array(counted, dtype=bool)).view(len(counts), MOST, -1 if counts else 0),
    }


def _shown(picture: Scene, items: tuple[int, ...]) -> np.ndarray:
    """Which patches show each of these objects. [MOST, rows * columns]"""
    found = np.zeros((MOST, picture.rows * picture.columns), dtype=bool)
    for number, index in enumerate(items):
        found[number, [*picture.patches(index), centre(picture, picture.items[index])]] = True
    return found


def _noun(b: int, place: int, picture: Scene, index: int) -> list[int]:
    """Where a phrase stands, and what it names: row, column, size, shape, colour, pattern; x, y and size in pixels."""
    item = picture.items[index]
    what = [SHAPE_NUMBER[item.shape], COLOR_NUMBER[item.color], PATTERN_NUMBER[item.pattern]]
    return [b, place, item.y // PATCH, item.x // PATCH, size_class(item.size), *what, item.x, item.y, item.size]


def _places(picture: Scene) -> list[int]:
    rows, columns = np.arange(picture.rows)[:, None] + picture.row, np.arange(picture.columns)[None, :] + picture.column
    return [int(place) for place in (rows * GRID + columns).ravel()]


def _present(pictures: list[Scene]) -> Tensor:
    """Which colour-shape pairs a picture shows. [B, 72]"""
    shown = torch.zeros(len(pictures), 9 * 8)
    for b, picture in enumerate(pictures):
        for item in picture.items:
            shown[b, (SHAPE_NUMBER[item.shape] - 1) * 8 + COLOR_NUMBER[item.color] - 1] = 1
    return shown
