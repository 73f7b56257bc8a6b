"""Questions about a scene, their answers, and the objects that they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from divevlm_tiny.scene import Item, Scene
from divevlm_tiny.words import COLORS, PLURALS, SHAPES, SIGN, TASKS, UNSEEN

APART = 28  # pixels between two centres, at least, where a relation is asked
LARGER = 1.4  # ratio of two sizes, at least, where they are compared
MIDDLE = 14  # pixels around the middle lines where no position is asked


@dataclass(frozen=True)
class Question:
    """nouns: the number of the last word of each phrase that names one object, and that object."""

    task: str
    text: str
    answer: str
    items: tuple[int, ...]
    nouns: tuple[tuple[int, int], ...] = ()

    @property
    def balance(self) -> str:
        """What is balanced within a task: the answer, or for "this one or that one" whether it is the first."""
        if self.task not in ("comparison", "order") or self.answer in ("yes", "no"):
            return self.answer
        return "first" if f"the {self.answer} or" in self.text else "second"


Part = str | tuple[str, int]  # words, or words that name an object


def question(task: str, answer: str, *parts: Part, items: tuple[int, ...] | None = None) -> Question:
    words: list[str] = []
    nouns: list[tuple[int, int]] = []
    for part in parts:
        words += (part if isinstance(part, str) else part[0]).split()
        if not isinstance(part, str):
            nouns.append((len(words) - 1, part[1]))
    text = " ".join(words).replace(" ,", ",") + "?"
    named = tuple(dict.fromkeys(index for _, index in nouns)) if items is None else items
    return Question(task, text[0].upper() + text[1:], answer, named, tuple(nouns))


class View:
    """A scene with its objects counted by name, so that questions name each object without ambiguity."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.items = scene, scene.items
        self.names = Counter((item.color, item.shape) for item in self.items)
        self.shapes = Counter(item.shape for item in self.items)
        self.colors = Counter(item.color for item in self.items)

    def unique(self, condition: Callable[[Item], bool] = lambda item: True) -> list[int]:
        """Objects that no other shares colour and shape with."""
        return [i for i, item in enumerate(self.items) if self.names[item.color, item.shape] == 1 and condition(item)]

    def name(self, index: int) -> tuple[str, int]:
        item = self.items[index]
        return f"{item.color} {item.shape}", index


def existence(view: View, random: Random) -> Question | None:
    """Half of the absent objects share their colour or shape with one that is there."""
    if random.random() < 0.5:
        shown = view.unique()
        if not shown:
            return None
        index = random.choice(shown)
        return question("existence", "yes", f"is there {_article(view.items[index].color)}", view.name(index))
    shapes, colors = (SHAPES, COLORS) if random.random() < 0.3 else (tuple(view.shapes), tuple(view.colors))
    shape, color = random.choice(shapes), random.choice(colors)
    if view.names[color, shape] or (color, shape) in UNSEEN:
        return None
    return question("existence", "no", f"is there {_article(color)} {color} {shape}")


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def attribute(view: View, random: Random) -> Question | None:
    kind = random.randrange(3)
    if kind == 0:
        found = view.unique(lambda item: view.shapes[item.shape] == 1 and not item.small)
        if found:
            index = random.choice(found)
            item = view.items[index]
            return question("attribute", item.color, "what color is the", (item.shape, index))
    if kind == 1:
        found = view.unique(lambda item: view.colors[item.color] == 1 and not item.small and item.shape != SIGN)
        if found:
            index = random.choice(found)
            item = view.items[index]
            return question("attribute", item.shape, "what shape is the", (f"{item.color} object", index))
    found = view.unique(lambda item: not item.small and item.shape != SIGN)
    if not found:
        return None
    index = random.choice(found)
    return question("attribute", view.items[index].pattern, "what pattern does the", view.name(index), "have")


def _side(one: Item, two: Item) -> tuple[bool, bool]:
    """Is the first one left of, and above, the second?"""
    return one.x < two.x, one.y < two.y


def relation(view: View, random: Random) -> Question | None:
    found = view.unique()
    if len(found) < 2:
        return None
    first, second = random.sample(found, 2)
    one, two = view.items[first], view.items[second]
    dx, dy = abs(one.x - two.x), abs(one.y - two.y)
    left, above = _side(one, two)
    if random.random() < 0.5:
        if max(dx, dy) < APART or 2 * max(dx, dy) < 3 * min(dx, dy):
            return None
        answer = ("left" if left else "right") if dx > dy else ("above" if above else "below")
        return question("relation", answer, "on which side of the", view.name(second), "is the", view.name(first))
    across = random.random() < 0.5
    if (dx if across else dy) < APART:
        return None
    claim = random.random() < 0.5
    word = ("left of" if claim else "right of") if across else ("above" if claim else "below")
    answer = "yes" if claim == (left if across else above) else "no"
    return question("relation", answer, "is the", view.name(first), f"{word} the", view.name(second))


def counting(view: View, random: Random) -> Question | None:
    want = random.randint(1, 4)
    kinds = [(shape, "") for shape, n in view.shapes.items() if n == want]
    kinds += [("", color) for color, n in view.colors.items() if n == want]
    if not kinds:
        return None
    return count(view, *random.choice(kinds))


def count(view: View, shape: str, color: str) -> Question:
    """How many objects of a shape, or of a colour, there are; the other one is empty."""
    what = PLURALS[shape] if shape else f"{color} objects"
    members = tuple(i for i, item in enumerate(view.items) if shape in ("", item.shape) and color in ("", item.color))
    return question("counting", str(len(members)), f"how many {what} are there", items=members)


def reading(view: View, random: Random) -> Question | None:
    signs = view.unique(lambda item: item.shape == SIGN)
    if not signs:
        return None
    index = random.choice(signs)
    item = view.items[index]
    name = SIGN if view.shapes[SIGN] == 1 and random.random() < 0.5 else f"{item.color} {SIGN}"
    if random.random() < 0.5:
        return question("reading", item.text, "what does the", (name, index), "say")
    return question(
        "reading", item.text, f"what {'number' if item.text.isdigit() else 'word'} is on the", (name, index)
    )


def position(view: View, random: Random) -> Question | None:
    x, y = view.scene.middle
    found = view.unique(lambda item: min(abs(item.x - x), abs(item.y - y)) >= MIDDLE)
    if not found:
        return None
    index = random.choice(found)
    item = view.items[index]
    answer = f"{'top' if item.y < y else 'bottom'} {'left' if item.x < x else 'right'}"
    return question("position", answer, "where is the", view.name(index))


def comparison(view: View, random: Random) -> Question | None:
    found = view.unique(lambda item: item.shape != SIGN)
    if len(found) < 2:
        return None
    first, second = random.sample(found, 2)
    one, two = view.items[first].size, view.items[second].size
    if max(one, two) < LARGER * min(one, two):
        return None
    word = random.choice(("larger", "smaller"))
    holds = (one > two) == (word == "larger")
    if random.random() < 0.5:
        answer = view.name(first if holds else second)[0]
        return question("comparison", answer, f"which is {word} , the", view.name(first), "or the", view.name(second))
    return question(
        "comparison", "yes" if holds else "no", "is the", view.name(first), f"{word} than the", view.name(second)
    )


def detail(view: View, random: Random) -> Question | None:
    small = [(i, item) for i, item in enumerate(view.items) if item.small]
    shapes, colors = Counter(item.shape for _, item in small), Counter(item.color for _, item in small)
    if random.random() < 0.5:
        found = [(i, item) for i, item in small if shapes[item.shape] == 1]
        if not found:
            return None
        index, item = random.choice(found)
        return question("detail", item.color, "what color is the", (f"small {item.shape}", index))
    found = [(i, item) for i, item in small if colors[item.color] == 1]
    if not found:
        return None
    index, item = random.choice(found)
    return question("detail", item.shape, "what shape is the", (f"small {item.color} object", index))


ASKED = (existence, attribute, relation, counting, reading, position, comparison, detail)
ASK: dict[str, Callable[[View, Random], Question | None]] = dict(zip(TASKS, ASKED, strict=True))


def ask(view: View, task: str, random: Random, seen: Counter[tuple[str, str]], tries: int = 6) -> Question | None:
    """Of a few random questions, the one whose answer was asked for least so far; `seen` counts them."""
    found = [question for question in (ASK[task](view, random) for _ in range(tries)) if question is not None]
    if not found:
        return None
    best = min(found, key=lambda question: seen[task, question.balance])
    seen[task, best.balance] += 1
    return best
