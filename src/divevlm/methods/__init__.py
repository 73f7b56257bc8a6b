"""One file a method: what it looks at, where it cuts, whom it keeps."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from divevlm.budget import Budget
from divevlm.methods.base import Method
from divevlm.registry import Registry

__all__ = ["METHODS", "Method", "method_of"]

METHODS: Registry[type[Method]] = Registry("method")
METHODS.add("dive", "divevlm.methods.dive:DIVE")
METHODS.add("dive-no-language", "divevlm.methods.dive:NoLanguage")
METHODS.add("dive-no-visual", "divevlm.methods.dive:NoVisual")
METHODS.add("dive-no-update", "divevlm.methods.dive:NoUpdate")


def method_of(method: str | Method, keep: int | float | Budget | None, options: dict[str, Any]) -> Method:
    """A method by name with its settings, or one that is ready."""
    if isinstance(method, Method):
        if keep is not None or options:
            given = sorted(options) + ["keep"] * (keep is not None)
            raise ValueError(
                f"options must be set on the {method.name} object itself, got {', '.join(given)} beside it"
            )
        return method
    if not isinstance(method, str):
        raise ValueError(f"method must be a name or a Method object, got {type(method).__name__}")
    kind = METHODS.get(method)
    allowed = sorted(f.name for f in fields(kind) if f.init and f.name != "keep")
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ValueError(f"options of {method} must be among {', '.join(allowed)}, got {', '.join(unknown)}")
    if keep is None:
        raise ValueError(f"keep must be a count of at least 1 or a share in (0, 1], got None for {method}")
    return kind(keep=keep, **options)
