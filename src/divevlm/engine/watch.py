"""Seeing the arguments of a model's calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn


class Watch:
    """Tells of every call of base.get_image_features or get_video_features, with its arguments by name and its result.

    Generation encodes before it calls the model, and only these methods see the sizes of the images.
    """

    busy = False  # some families encode videos through the method for images: the outer call counts

    def __init__(self, base: nn.Module, kind: str, tell: Callable[[str, dict[str, Any], Any], None]) -> None:
        self.base, self.name = base, f"get_{kind}_features"
        method = getattr(base, self.name)

        @functools.wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if Watch.busy:
                return method(*args, **kwargs)
            Watch.busy = True
            try:
                features = method(*args, **kwargs)
            finally:
                Watch.busy = False
            tell(kind, inspect.signature(method).bind_partial(*args, **kwargs).arguments, features)
            return features

        setattr(base, self.name, watched)

    def remove(self) -> None:
        delattr(self.base, self.name)


def bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass by name."""
    if not args:
        return dict(kwargs)
    names = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
    return {**names, **names.pop("kwargs", {})}
