"""What a session changes about a live model, and how it is put back: hooks, and attributes of single instances."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

ABSENT = object()


class Hook:
    """A forward hook. A copy of the model gets one that does nothing: the copy is not attached."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any) -> Any:
        return self.run(*args)

    def __reduce__(self) -> Any:
        return Hook, (_nothing,)


class Patch:
    """Runs `wrap(original, *args, **kwargs)` in place of a method of one instance, until `undo`.

    What the instance itself had under that name (a user's or accelerate's own function, or nothing) comes back. If somebody
    has wrapped the patch meanwhile, theirs stays and the patch hands calls on. A copy of the instance gets the original.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[..., Any]) -> None:
        self.owner, self.name, self.wrap = owner, name, wrap
        self.before = vars(owner).get(name, ABSENT)
        self.original = getattr(owner, name)
        self.active = True
        functools.update_wrapper(self, self.original)
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.wrap(self.original, *args, **kwargs) if self.active else self.original(*args, **kwargs)

    def undo(self) -> None:
        self.active = False
        if vars(self.owner).get(self.name) is not self:
            return
        if self.before is ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)

    def __reduce__(self) -> Any:
        return _itself, (self.original,)


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    if not args:
        return dict(kwargs)
    names = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    return {**names, **names.pop("kwargs", {})}


def _nothing(*_: Any) -> None:
    return None


def _itself(value: Any) -> Any:
    return value
