"""Pictures of what was kept, and the explorer page.

asked = ask(model, processor, "What is this?", [image], [("dive", DIVE(keep=64, trace=True)), ("random", ...)])
Path("kept.svg").write_bytes(rendered(masks(asked), ".svg"))
Path("page.html").write_text(page(asked))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divevlm.viz.asking import Answer, Asked, ask
    from divevlm.viz.canvas import rendered
    from divevlm.viz.explorer import page, settings
    from divevlm.viz.media import Clip, load
    from divevlm.viz.overlays import evolution, gallery, heat_map, kept, masks
    from divevlm.viz.places import Grid, Panel, panels
    from divevlm.viz.plots import feedback_boxes, performance_latency, redundancy_densities

_WHERE = {
    "asking": ("Answer", "Asked", "ask"),
    "canvas": ("rendered",),
    "explorer": ("page", "settings"),
    "media": ("Clip", "load"),
    "overlays": ("evolution", "gallery", "heat_map", "kept", "masks"),
    "places": ("Grid", "Panel", "panels"),
    "plots": ("feedback_boxes", "performance_latency", "redundancy_densities"),
}
_LAZY = {name: f"divevlm.viz.{module}" for module, names in _WHERE.items() for name in names}

__all__ = [
    "Answer", "Asked", "Clip", "Grid", "Panel", "ask", "evolution", "feedback_boxes", "gallery", "heat_map", "kept", "load",
    "masks", "page", "panels", "performance_latency", "redundancy_densities", "rendered", "settings",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'divevlm.viz' has no attribute {name!r}")
