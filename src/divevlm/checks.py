"""Refusals in one line that names the parameter, what was given and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches


def require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def hint(name: object, known: Iterable[str]) -> str:
    """What was perhaps meant by a name that is not known."""
    near = get_close_matches(str(name).lower(), list(known), n=1)
    return f": did you mean {near[0]!r}?" if near else ""


def number(name: str, value: object, allowed: str, ok: Callable[[float], bool]) -> None:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    require(numeric and ok(value), name, value, allowed)  # type: ignore[arg-type]


def whole(name: str, value: object, least: int) -> None:
    counts = isinstance(value, int) and not isinstance(value, bool)
    require(counts and value >= least, name, value, f"a whole number of at least {least}")  # type: ignore[operator]


def yes_or_no(name: str, value: object) -> None:
    require(isinstance(value, bool), name, value, "True or False")


def at_least(option: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        kind = "" if math.isfinite(value) else "a number of "
        raise ValueError(f"{option} must be {kind}at least {least}, got {value}")


def counts(option: str, text: str, least: int, most: int) -> list[int]:
    """Whole numbers joined by commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and least <= int(part) <= most for part in parts):
        raise ValueError(f"{option} must be counts from {least} to {most}, got {text!r}")
    return [int(part) for part in parts]


def keep(text: str) -> int | float:
    """64 is a count; 0.25 a share, and so are 1.0 and 1e-1."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    raise ValueError(f"--keep must be a count or a share, got {text!r}")


def keeps(text: str) -> tuple[int | float, ...]:
    """ "192,0.25" -> (192, 0.25)"""
    found = tuple(keep(part) for part in names("--keep", text))
    require(len(set(found)) == len(found), "--keep", text, "budgets that differ (1 and 1.0 count as one)")
    return found


def names(option: str, text: str) -> tuple[str, ...]:
    """Values joined by commas, each once."""
    parts = [part.strip() for part in text.split(",")]
    require(all(parts), option, text, "values joined by commas, none of them empty")
    return tuple(dict.fromkeys(parts))


def numbers(option: str, text: str) -> tuple[float, ...]:
    """ "0,1.5" -> (0.0, 1.5)"""
    try:
        return tuple(float(part) for part in names(option, text))
    except ValueError:
        raise ValueError(f"{option} must be numbers joined by commas, got {text!r}") from None
