"""What a session changes about a live model, and how it is put back: hooks, and attributes of single instances."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

ABSENT = object()
NAMELESS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Hook:
    """A forward hook (or pre-hook), with keyword arguments; of a hook behind the module, also after an exception.

    A copy of the model gets one that does nothing: the copy is not attached. Neither does compiled code that remembers it.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def before(self, module: nn.Module, stack: ExitStack) -> None:
        self._until(stack, module.register_forward_pre_hook(self, with_kwargs=True))

    def behind(self, module: nn.Module, stack: ExitStack) -> None:
        self._until(stack, module.register_forward_hook(self, with_kwargs=True, always_call=True))

    def _until(self, stack: ExitStack, handle: RemovableHandle) -> None:
        stack.callback(setattr, self, "run", _nothing)
        stack.callback(handle.remove)

    def __call__(self, *args: Any) -> Any:
        return self._aside(*args) if torch.compiler.is_compiling() else self.run(*args)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _aside(self, *args: Any) -> Any:
        """Outside of the code that is being compiled."""
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
        functools.update_wrapper(self, self.original, updated=())
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
        return itself, (self.original,)


def bound(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name. called: a function, or a module, whose forward somebody may have wrapped namelessly."""
    if not args:
        return dict(kwargs)
    function = called.forward if isinstance(called, nn.Module) else called
    signature = inspect.signature(function)
    if isinstance(called, nn.Module) and all(p.kind in NAMELESS for p in signature.parameters.values()):
        signature = inspect.signature(type(called).forward.__get__(called))
    names = signature.bind_partial(*args, **kwargs).arguments
    return {**names, **names.pop("kwargs", {})}


def _nothing(*_: Any) -> None:
    return None


def itself(value: Any) -> Any:
    return value
