"""Keep the visual tokens that a prompt needs: DIVE and its relatives for vision-language models."""

from divevlm.budget import Budget
from divevlm.core.select import select
from divevlm.core.selection import Selection, Selections

__version__ = "0.1.0.dev0"

__all__ = ["Budget", "Selection", "Selections", "__version__", "select"]
