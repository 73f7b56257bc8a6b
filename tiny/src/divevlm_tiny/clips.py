"""Clips: eight frames of a scene in which one object moves and two appear, and questions about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np

from divevlm_tiny.ask import NamedScene, Question, question
from divevlm_tiny.draw import Pixels
from divevlm_tiny.scene import PATCH, Scene, SceneItem, scene

FRAMES = 8
CLIP_TASKS = ("motion", "direction", "order")
STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True)
class MovingScene:
    """`first` has every object; `mover` goes `direction` by `speed` pixels a frame; `appears` says when each comes."""

    first: Scene
    mover: int
    direction: str
    speed: int
    appears: tuple[int, ...]

    def frame(self, number: int) -> Scene:
        """The scene at one moment; objects that have not come yet are missing, so that indices do not match `first`."""
        dx, dy = STEPS[self.direction]
        items = []
        for index, item in enumerate(self.first.items):
            if number < self.appears[index]:
                continue
            if index == self.mover:
                item = replace(item, x=item.x + dx * self.speed * number, y=item.y + dy * self.speed * number)
            items.append(item)
        return replace(self.first, items=tuple(items), _cover={})

    @property
    def pixels(self) -> Pixels:
        """[8, h, w, 3]"""
        return np.stack([self.frame(number).pixels for number in range(FRAMES)])


def clip(seed: int, rows: int = 12, columns: int = 12) -> MovingScene | None:
    """A clip from a seed; None where the scene has no room for a move or too few objects."""
    random = Random(f"clip {seed}")
    picture = scene(seed, rows=rows, columns=columns, whole=True)
    named = NamedScene(picture)
    askable = named.unique()
    if len(askable) < 3:
        return None
    mover, *others = random.sample(askable, 3)
    free = [(way, room) for way in STEPS if (room := _room(picture, mover, way)) >= 3 * (FRAMES - 1)]
    if not free:
        return None
    way, room = random.choice(free)
    appears = [0] * len(picture.items)
    early, late = sorted(random.sample((2, 4, 6), 2))  # two frames make one token of Qwen2-VL
    for index, when in zip(random.sample(others, 2), (early, late), strict=True):
        appears[index] = when
    return MovingScene(picture, mover, way, min(8, room // (FRAMES - 1)), tuple(appears))


def _room(picture: Scene, index: int, way: str) -> int:
    """How far an object can go before it meets another or the edge, pixels."""
    item, (dx, dy) = picture.items[index], STEPS[way]
    free = 0
    while free < 60 and _fits(picture, index, replace(item, x=item.x + dx * (free + 4), y=item.y + dy * (free + 4))):
        free += 4
    return free


def _fits(picture: Scene, index: int, item: SceneItem) -> bool:
    left, top, right, bottom = item.box
    if left < 0 or top < 0 or right > picture.columns * PATCH or bottom > picture.rows * PATCH:
        return False
    boxes = (other.box for number, other in enumerate(picture.items) if number != index)
    return not any(left < r + 2 and l < right + 2 and top < b + 2 and t < bottom + 2 for l, t, r, b in boxes)  # noqa: E741


def ask_clip(shown: MovingScene, random: Random) -> list[Question]:
    """One question of each kind: what moved, in which direction, which of two came first."""
    named = NamedScene(shown.first)
    name = named.name(shown.mover)
    comers = sorted((when, index) for index, when in enumerate(shown.appears) if when)
    questions = [
        question("motion", name[0], "what moved", items=(shown.mover,)),
        question("direction", shown.direction, "in which direction did the", name, "move"),
    ]
    if len(comers) == 2:
        (_, early), (_, late) = comers
        one, two = random.sample([early, late], 2)
        ask = ("which came first , the", named.name(one), "or the", named.name(two))
        questions.append(question("order", named.name(early)[0], *ask))
    return questions
