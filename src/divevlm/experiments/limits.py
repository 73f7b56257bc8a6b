"""How many samples of each task, and which: seeded, every category among them."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from divevlm.checks import require
from divevlm.experiments.paper.recipe import benchmarks

ALLOWED = "a count of at least 1 or all, or TASK=COUNT joined by commas (vqav2=2000,all)"


@dataclass(frozen=True)
class Limits:
    """default: of every task (None: all); named: of these, by lmms-eval's name."""

    default: int | None = None
    named: tuple[tuple[str, int | None], ...] = ()

    def of(self, task: str) -> int | None:
        return dict(self.named).get(task, self.default)

    @classmethod
    def parse(cls, text: str | None) -> Limits:
        """ "200", "all", "vqav2=2000,mme=all,500": a task by lmms-eval's name or as the paper's column has it."""
        columns = {column.lower(): entry["task"] for column, entry in benchmarks().items()}
        default: list[int | None] = []
        named: dict[str, int | None] = {}
        for part in (text or "all").split(","):
            name, equals, count = part.strip().rpartition("=")
            require(bool(name) == bool(equals), "limit", text, ALLOWED)
            if name:
                named[columns.get(name.lower(), name)] = _count(count, text)
            else:
                default.append(_count(count, text))
        require(len(default) <= 1, "limit", text, ALLOWED)
        return cls(default[0] if default else None, tuple(named.items()))


def _count(text: str, whole: str | None) -> int | None:
    if text == "all":
        return None
    require(text.isdecimal() and int(text) >= 1, "limit", whole, ALLOWED)
    return int(text)


def chosen(
    count: int,
    limit: int | None,
    seed: int = 0,
    categories: Sequence[Hashable] | None = None,
    units: Sequence[Hashable] | None = None,
) -> list[int]:
    """Numbers of the samples to ask, ascending; a larger limit asks these and more.

    categories: of each sample; at least one of each is asked, whatever the limit, the others in proportion
    units: samples that belong together (the two questions of MME about a picture) are asked together
    """
    if limit is None or limit >= count:
        return list(range(count))
    together: dict[Hashable, list[int]] = {}
    for number in range(count):
        together.setdefault(number if units is None else units[number], []).append(number)
    strata: dict[Hashable, list[list[int]]] = {}
    for numbers in together.values():
        strata.setdefault(None if categories is None else categories[numbers[0]], []).append(numbers)
    draw = random.Random(seed)
    ranked: list[tuple[float, float, list[int]]] = []
    for some in strata.values():
        draw.shuffle(some)
        # the first of each category before all others, then in step
        ranked += [((i + 0.5) / len(some) if i else 0.0, draw.random(), one) for i, one in enumerate(some)]
    ranked.sort(key=lambda one: one[:2])
    asked: list[int] = []
    for place, (_, _, numbers) in enumerate(ranked):
        if place >= len(strata) and len(asked) + len(numbers) > limit:
            break
        asked += numbers
    return sorted(asked)


def spread(limit: int | None, members: int) -> list[int | None]:
    """Of a group: the limit shared among its members, at least one each."""
    if limit is None:
        return [None] * members
    each, more = divmod(limit, members)
    return [max(1, each + (i < more)) for i in range(members)]
