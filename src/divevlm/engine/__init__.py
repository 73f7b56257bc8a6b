"""The only code that touches a live model."""

from __future__ import annotations

from typing import Any

from torch import nn

from divevlm.budget import Budget
from divevlm.engine.session import Session
from divevlm.methods import Method, method_of

__all__ = ["Session", "attach", "prune"]


def prune(
    model: nn.Module,
    method: str | Method = "dive",
    keep: int | float | Budget | None = None,
    *,
    history: int = 1,
    **options: Any,
) -> Session:
    """`with prune(model, "dive", keep=64) as session:` prunes every prefill inside the block.

    history: how many reports `session.history` keeps; options: of the method. Calls of the model may say more: `prompt_mask`
    [B, S] (the text that chooses; by default what labels don't cover, or all) and, with `inputs_embeds`, `visual_mask` [B, S].
    `hidden_states`, where asked for, have the length that each block worked on.
    """
    return Session(model, method_of(method, keep, options), history)


def attach(
    model: nn.Module,
    method: str | Method = "dive",
    keep: int | float | Budget | None = None,
    *,
    history: int = 1,
    **options: Any,
) -> Session:
    """Prune from now on, until `.detach()`."""
    return prune(model, method, keep, history=history, **options).attach()
