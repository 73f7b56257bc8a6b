"""Budget: how many visual tokens to keep, of what, said plainly."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Scope = Literal["image", "sample", "view", "frame"]
ALLOWED = "a count of at least 1 or a share in (0, 1]"
SCOPES = ("image", "sample", "view", "frame")


class Segment(NamedTuple):
    """A run of `size` visual tokens of one sample: which image (or video), view and frame they show."""

    size: int
    image: int = 0
    view: int = 0
    frame: int = 0


class Share(NamedTuple):
    """Segments (by position in the list) whose tokens compete, and how many of them are kept."""

    segments: tuple[int, ...]
    keep: int


@dataclass(frozen=True, init=False)
class Budget:
    """How many tokens to keep in each unit of `scope`.

    Budget(64)                      64 tokens of each image (all its views together)
    Budget(0.15, scope="frame")     15 % of each frame, totals exact over the video
    Budget(320, scope="view")       320 tokens of each view
    Budget(energy=0.9, max=128)     as many as it takes to explain 90 % of the visual energy, at most 128

    An int is a count, a float in (0, 1] a share (1.0 keeps everything, 1 keeps one token).
    """

    count: int | None
    share: float | None
    energy: float | None
    max: int | None
    scope: Scope

    def __init__(
        self,
        keep: int | float | None = None,
        *,
        energy: float | None = None,
        max: int | None = None,
        scope: Scope = "image",
    ) -> None:
        if (keep is None) == (energy is None):
            raise ValueError(f"a Budget needs either keep or energy, got keep={keep!r} and energy={energy!r}")
        if max is not None and energy is None:
            raise ValueError(f"max goes with energy only, got max={max!r} with keep={keep!r}")
        if scope not in SCOPES:
            raise ValueError(f"scope must be one of {', '.join(SCOPES)}, got {scope!r}")
        whole = _whole(keep)
        fields = {
            "count": None if whole is None else _at_least_one("keep", whole),
            "share": None if keep is None or whole is not None else _fraction("keep", keep),
            "energy": None if energy is None else _fraction("energy", energy),
            "max": None if max is None else _at_least_one("max", max),
            "scope": scope,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, keep: int | float | Budget, scope: Scope | None = None) -> Budget:
        """A budget from what users write; `scope`, if given, goes before the budget's own."""
        if keep is None:
            raise ValueError(f"keep must be {ALLOWED}, got None")
        if not isinstance(keep, Budget):
            return cls(keep, scope=scope or "image")
        if scope is None or scope == keep.scope:
            return keep
        return cls(keep.count or keep.share, energy=keep.energy, max=keep.max, scope=scope)

    def tokens(self, n: int) -> int:
        """How many of n tokens this keeps (an energy target: at most). At least one, at most n."""
        if self.share is not None:
            return min(n, max(1, _nearest(self.share * n)))
        limit = self.count if self.count is not None else self.max
        return n if limit is None else min(n, limit)

    def shares(self, segments: Sequence[Segment]) -> list[Share]:
        """Who competes with whom in one sample, and for how many places. Covers every segment once."""
        units = _grouped(segments, self.scope)
        sizes = [sum(segments[i].size for i in unit) for unit in units]
        if self.share is None or self.scope in ("image", "sample"):
            return [Share(unit, self.tokens(size)) for unit, size in zip(units, sizes, strict=True)]
        kept: dict[tuple[int, ...], int] = {}  # views and frames: the image's total is exact, divided by size
        for image in _grouped(segments, "image"):
            inside = [unit for unit in units if unit[0] in image]
            amounts = [sum(segments[i].size for i in unit) for unit in inside]
            kept.update(zip(inside, divide(self.tokens(sum(amounts)), amounts), strict=True))
        return [Share(unit, kept[unit]) for unit in units]

    def __str__(self) -> str:
        of = self.scope
        if self.count is not None:
            return f"{self.count} visual token{'s' * (self.count != 1)} of each {of}"
        if self.share is not None:
            return f"{100 * self.share:.4g} % of the visual tokens of each {of}"
        limit = "" if self.max is None else f", at most {self.max}"
        return f"the visual tokens that explain {100 * (self.energy or 0):.4g} % of the energy of each {of}{limit}"


def divide(total: int, sizes: Sequence[int]) -> list[int]:
    """Divide `total` places in proportion to `sizes`, by largest remainder; ties to the earlier one, none above its size."""
    whole = sum(sizes)
    total = min(total, whole)
    if total == 0:
        return [0] * len(sizes)
    places = [total * size // whole for size in sizes]
    rest = sorted(range(len(sizes)), key=lambda i: (-(total * sizes[i] % whole), i))
    for i in rest[: total - sum(places)]:
        places[i] += 1
    return places


def _grouped(segments: Sequence[Segment], scope: str) -> list[tuple[int, ...]]:
    units: dict[Any, list[int]] = {}
    for i, segment in enumerate(segments):
        key = {
            "sample": (),
            "image": (segment.image,),
            "view": (segment.image, segment.view),
            "frame": (segment.image, segment.frame),
        }[scope]
        units.setdefault(key, []).append(i)
    return [tuple(unit) for unit in units.values()]


def _nearest(value: float) -> int:
    """Halves up, and no surprise from binary fractions: 0.15 of 20 is 3."""
    return math.floor(round(value, 6) + 0.5)


def _whole(value: object) -> int | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _at_least_one(name: str, value: object) -> int:
    whole = _whole(value)
    if whole is None or whole < 1:
        raise ValueError(f"{name} must be {ALLOWED if name == 'keep' else 'a count of at least 1'}, got {value!r}")
    return whole


def _fraction(name: str, value: object) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number <= 1:
        raise ValueError(f"{name} must be {ALLOWED if name == 'keep' else 'a share in (0, 1]'}, got {value!r}")
    return number
