"""Questions about a scene, their answers, and the objects that they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from divevlm_tiny.scene import Scene, SceneItem
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
    about = tuple(dict.fromkeys(index for _, index in nouns)) if items is None else items
    return Question(task, text[0].upper() + text[1:], answer, about, tuple(nouns))


class NamedScene:
    """A scene with its objects counted by name, so that questions name each object without ambiguity."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.items = scene, scene.items
        self.names = Counter((item.color, item.shape) for item in self.items)
        self.shapes = Counter(item.shape for item in self.items)
        self.colors = Counter(item.color for item in self.items)

    def unique(self, condition: Callable[[SceneItem], bool] = lambda item: True) -> list[int]:
        """Objects that no other shares colour and shape with."""
        return [i for i, item in enumerate(self.items) if self.names[item.color, item.shape] == 1 and condition(item)]

    def name(self, index: int) -> tuple[str, int]:
        item = self.items[index]
        return f"{item.color} {item.shape}", index


def existence(named: NamedScene, random: Random) -> Question | None:
    """Half of the absent objects share their colour or shape with one that is there."""
    if random.random() < 0.5:
        shown = named.unique()
        if not shown:
            return None
        index = random.choice(shown)
        return question("existence", "yes", f"is there {_article(named.items[index].color)}", named.name(index))
    shapes, colors = (SHAPES, COLORS) if random.random() < 0.3 else (tuple(named.shapes), tuple(named.colors))
    shape, color = random.choice(shapes), random.choice(colors)
    if named.names[color, shape] or (color, shape) in UNSEEN:
        return None
    return question("existence", "no", f"is there {_article(color)} {color} {shape}")


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def attribute(named: NamedScene, random: Random) -> Question | None:
    kind = random.randrange(3)
    if kind == 0:
        askable = named.unique(lambda item: named.shapes[item.shape] == 1 and not item.small)
        if askable:
            index = random.choice(askable)
            item = named.items[index]
            return question("attribute", item.color, "what color is the", (item.shape, index))
    if kind == 1:
        askable = named.unique(lambda item: named.colors[item.color] == 1 and not item.small and item.shape != SIGN)
        if askable:
            index = random.choice(askable)
            item = named.items[index]
            return question("attribute", item.shape, "what shape is the", (f"{item.color} object", index))
    askable = named.unique(lambda item: not item.small and item.shape != SIGN)
    if not askable:
        return None
    index = random.choice(askable)
    return question("attribute", named.items[index].pattern, "what pattern does the", named.name(index), "have")


def _side(one: SceneItem, two: SceneItem) -> tuple[bool, bool]:
    """Is the first one left of, and above, the second?"""
    return one.x < two.x, one.y < two.y


def relation(named: NamedScene, random: Random) -> Question | None:
    askable = named.unique()
    if len(askable) < 2:
        return None
    first, second = random.sample(askable, 2)
    one, two = named.items[first], named.items[second]
    dx, dy = abs(one.x - two.x), abs(one.y - two.y)
    left, above = _side(one, two)
    if random.random() < 0.5:
        if max(dx, dy) < APART or 2 * max(dx, dy) < 3 * min(dx, dy):
            return None
        answer = ("left" if left else "right") if dx > dy else ("above" if above else "below")
        return question("relation", answer, "on which side of the", named.name(second), "is the", named.name(first))
    across = random.random() < 0.5
    if (dx if across else dy) < APART:
        return None
    claim = random.random() < 0.5
    word = ("left of" if claim else "right of") if across else ("above" if claim else "below")
    answer = "yes" if claim == (left if across else above) else "no"
    return question("relation", answer, "is the", named.name(first), f"{word} the", named.name(second))


def counting(named: NamedScene, random: Random) -> Question | None:
    want = random.randint(1, 4)
    kinds = [(shape, "") for shape, n in named.shapes.items() if n == want]
    kinds += [("", color) for color, n in named.colors.items() if n == want]
    if not kinds:
        return None
    return count(named, *random.choice(kinds))


def count(named: NamedScene, shape: str, color: str) -> Question:
    """How many objects of a shape, or of a colour, there are; the other one is empty."""
    what = PLURALS[shape] if shape else f"{color} objects"
    members = tuple(i for i, item in enumerate(named.items) if shape in ("", item.shape) and color in ("", item.color))
    return question("counting", str(len(members)), f"how many {what} are there", items=members)


def reading(named: NamedScene, random: Random) -> Question | None:
    signs = named.unique(lambda item: item.shape == SIGN)
    if not signs:
        return None
    index = random.choice(signs)
    item = named.items[index]
    name = SIGN if named.shapes[SIGN] == 1 and random.random() < 0.5 else f"{item.color} {SIGN}"
    if random.random() < 0.5:
        return question("reading", item.text, "what does the", (name, index), "say")
    return question(
        "reading", item.text, f"what {'number' if item.text.isdigit() else 'word'} is on the", (name, index)
    )


def position(named: NamedScene, random: Random) -> Question | None:
    x, y = named.scene.middle
    askable = named.unique(lambda item: min(abs(item.x - x), abs(item.y - y)) >= MIDDLE)
    if not askable:
        return None
    index = random.choice(askable)
    item = named.items[index]
    answer = f"{'top' if item.y < y else 'bottom'} {'left' if item.x < x else 'right'}"
    return question("position", answer, "where is the", named.name(index))


def comparison(named: NamedScene, random: Random) -> Question | None:
    askable = named.unique(lambda item: item.shape != SIGN)
    if len(askable) < 2:
        return None
    first, second = random.sample(askable, 2)
    one, two = named.items[first].size, named.items[second].size
    if max(one, two) < LARGER * min(one, two):
        return None
    word = random.choice(("larger", "smaller"))
    holds = (one > two) == (word == "larger")
    if random.random() < 0.5:
        answer = named.name(first if holds else second)[0]
        return question("comparison", answer, f"which is {word} , the", named.name(first), "or the", named.name(second))
    return question(
        "comparison", "yes" if holds else "no", "is the", named.name(first), f"{word} than the", named.name(second)
    )


def detail(named: NamedScene, random: Random) -> Question | None:
    small = [(i, item) for i, item in enumerate(named.items) if item.small]
    shapes, colors = Counter(item.shape for _, item in small), Counter(item.color for _, item in small)
    if random.random() < 0.5:
        askable = [(i, item) for i, item in small if shapes[item.shape] == 1]
        if not askable:
            return None
        index, item = random.choice(askable)
        return question("detail", item.color, "what color is the", (f"small {item.shape}", index))
    askable = [(i, item) for i, item in small if colors[item.color] == 1]
    if not askable:
        return None
    index, item = random.choice(askable)
    return question("detail", item.shape, "what shape is the", (f"small {item.color} object", index))


ASKED = (existence, attribute, relation, counting, reading, position, comparison, detail)
ASK: dict[str, Callable[[NamedScene, Random], Question | None]] = dict(zip(TASKS, ASKED, strict=True))


def ask(
    named: NamedScene, task: str, random: Random, seen: Counter[tuple[str, str]], tries: int = 6
) -> Question | None:
    """Of a few random questions, the one whose answer was asked for least so far; `seen` counts them."""
    questions = [question for question in (ASK[task](named, random) for _ in range(tries)) if question is not None]
    if not questions:
        return None
    best = min(questions, key=lambda question: seen[task, question.balance])
    seen[task, best.balance] += 1
    return best
