"""One small registry: names to things, loaded when asked for, open to plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from divevlm.checks import hint

T = TypeVar("T")


class Registry(Generic[T]):
    """Named things of one kind. An entry is the thing itself or "module:attribute", imported on first use.

    Other packages add entries through the entry-point group `divevlm.<kinds>`; they can't replace one of ours.
    """

    def __init__(self, kind: str, kinds: str | None = None) -> None:
        self.kind, self.group = kind, f"divevlm.{kinds or kind + 's'}"
        self._entries: dict[str, T | str] = {}
        self._complete = False  # plugins are looked up

    def add(self, name: str, entry: T | str) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+|_[a-z0-9]+)*", name):
            raise ValueError(f"name must be lower-case words joined by - or _, got {name!r} for a {self.kind}")
        if name in self._entries:
            raise ValueError(
                f"name must be new, got {name!r}: there is a {self.kind} of that name ({self._entries[name]!r})"
            )
        if isinstance(entry, str) and not re.fullmatch(r"[\w.]+:\w+", entry):
            raise ValueError(f"entry must be a thing or 'module:attribute', got {entry!r} for the {self.kind} {name!r}")
        self._entries[name] = entry

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator form of `add`."""

        def decorate(thing: T) -> T:
            self.add(name, thing)
            return thing

        return decorate

    def get(self, name: str) -> T:
        """The thing of that name; a ValueError with the nearest names otherwise."""
        if name not in self._entries:
            self._load_plugins()
        if name not in self._entries:
            raise ValueError(f"{self.kind} must be one of {', '.join(self)}, got {name!r}{hint(name, self)}")
        entry = self._entries[name]
        if isinstance(entry, str):
            module, attribute = entry.split(":")
            thing: T = getattr(import_module(module), attribute)
            self._entries[name] = thing
            return thing
        return entry

    def _load_plugins(self) -> None:
        if not self._complete:
            self._complete = True
            for point in entry_points(group=self.group):
                self.add(point.name, point.value)

    def __contains__(self, name: object) -> bool:
        self._load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._load_plugins()
        return len(self._entries)
