"""The only code that touches a live model."""

from __future__ import annotations

from typing import Any

from torch import nn

from divevlm.budget import Budget
from divevlm.engine.session import Session
from divevlm.methods import Method, method_of

__all__ = ["Session", "attach", "prune"]


def prune(
    model: nn.Module, method: str | Method = "dive", keep: int | float | Budget | None = None, **options: Any
) -> Session:
    """`with prune(model, "dive", keep=64) as session:` prunes every prefill inside the block."""
    return Session(model, method_of(method, keep, options))


def attach(
    model: nn.Module, method: str | Method = "dive", keep: int | float | Budget | None = None, **options: Any
) -> Session:
    """Prune from now on, until `.detach()`."""
    return prune(model, method, keep, **options).attach()
