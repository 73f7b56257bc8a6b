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

    def __init__(
        self, base: nn.Module, kind: str, begin: Callable[[], None], tell: Callable[[str, dict[str, Any], Any], None]
    ) -> None:
        self.base, self.name = base, f"get_{kind}_features"
        method = getattr(base, self.name)

        @functools.wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if Watch.busy:
                return method(*args, **kwargs)
            Watch.busy = True
            begin()
            try:
                features = method(*args, **kwargs)
            finally:
                Watch.busy = False
            tell(kind, inspect.signature(method).bind_partial(*args, **kwargs).arguments, features)
            return features

        setattr(base, self.name, watched)

    def remove(self) -> None:
        delattr(self.base, self.name)


class Gate:
    """Refuses what `generate` can't do with a pruned cache, before anything is computed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.own = hasattr(model, "generate")
        if not self.own:
            return
        generate = model.generate

        @functools.wraps(generate)
        def gated(*args: Any, **kwargs: Any) -> Any:
            settings = kwargs.get("generation_config") or model.generation_config
            for name, (free, instead) in REFUSED.items():
                value = kwargs.get(name, getattr(settings, name, None))
                if value not in free:
                    shown = type(value).__name__ if isinstance(value, nn.Module) else repr(value)
                    raise ValueError(f"{name} must be {instead} under pruning, got {shown}")
            return generate(*args, **kwargs)

        model.generate = gated

    def remove(self) -> None:
        if self.own:
            del self.model.generate


REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "assistant_model": ((None,), "None (assisted decoding crops the cache)"),
    "assistant_early_exit": ((None,), "None (assisted decoding crops the cache)"),
    "prompt_lookup_num_tokens": ((None,), "None (assisted decoding crops the cache)"),
    "prefill_chunk_size": ((None,), "None (an image can't be cut into chunks)"),
    "cache_implementation": ((None, "dynamic"), "None or 'dynamic' (blocks hold different lengths)"),
}


def bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass by name."""
    if not args:
        return dict(kwargs)
    names = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
    return {**names, **names.pop("kwargs", {})}
