"""Keep the visual tokens that a prompt needs: DIVE and its relatives for vision-language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divevlm.budget import Budget
    from divevlm.core.select import select
    from divevlm.core.selection import Selection, Selections
    from divevlm.engine import Session, attach, prune
    from divevlm.methods.dive import DIVE
    from divevlm.planning import plan

__version__ = "0.1.0.dev0"

__all__ = ["DIVE", "Budget", "Selection", "Selections", "Session", "__version__", "attach", "plan", "prune", "select"]

_LAZY = {  # these import torch or transformers, which takes seconds
    "Budget": "divevlm.budget",
    "DIVE": "divevlm.methods.dive",
    "Selection": "divevlm.core.selection",
    "Selections": "divevlm.core.selection",
    "Session": "divevlm.engine",
    "attach": "divevlm.engine",
    "plan": "divevlm.planning",
    "prune": "divevlm.engine",
    "select": "divevlm.core.select",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'divevlm' has no attribute {name!r}")
