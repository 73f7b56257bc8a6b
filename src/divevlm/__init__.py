"""Keep the visual tokens that a prompt needs: DIVE and its relatives for vision-language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divevlm.budget import Budget
    from divevlm.core.select import select
    from divevlm.core.selection import Rows, Selection, Selections
    from divevlm.engine import Session, attach, prune
    from divevlm.methods import METHODS
    from divevlm.methods.base import Method, Needs, Signals, Vision
    from divevlm.methods.dive import DIVE
    from divevlm.methods.each import BeforeLLM, Each, ranked
    from divevlm.models import FAMILIES
    from divevlm.models.base import Family, Heads, View, Visual
    from divevlm.models.places import Place
    from divevlm.planning import plan

__version__ = "0.1.0.dev0"

_MODULES = {  # imported when a name is first used: torch and transformers take seconds
    "divevlm.budget": ("Budget",),
    "divevlm.core.select": ("select",),
    "divevlm.core.selection": ("Rows", "Selection", "Selections"),
    "divevlm.engine": ("Session", "attach", "prune"),
    "divevlm.methods": ("METHODS",),
    "divevlm.methods.base": ("Method", "Needs", "Signals", "Vision"),
    "divevlm.methods.dive": ("DIVE",),
    "divevlm.methods.each": ("BeforeLLM", "Each", "ranked"),
    "divevlm.models": ("FAMILIES",),
    "divevlm.models.base": ("Family", "Heads", "View", "Visual"),
    "divevlm.models.places": ("Place",),
    "divevlm.planning": ("plan",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "DIVE", "FAMILIES", "METHODS", "BeforeLLM", "Budget", "Each", "Family", "Heads", "Method", "Needs", "Place",
    "Rows", "Selection", "Selections", "Session", "Signals", "View", "Vision", "Visual",
    "__version__", "attach", "plan", "prune", "ranked", "select",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'divevlm' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
