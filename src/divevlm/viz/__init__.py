"""Pictures of what was kept, and the explorer page.

comparison = ask(model, processor, "What is this?", [image], [("dive", DIVE(keep=64, trace=True)), ("random", ...)])
Path("kept.svg").write_bytes(rendered(masks(comparison), ".svg"))
Path("page.html").write_text(page(comparison))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divevlm.media import Video, load
    from divevlm.viz.asking import Comparison, MethodAnswer, ask
    from divevlm.viz.canvas import rendered
    from divevlm.viz.explorer import page, settings
    from divevlm.viz.overlays import evolution, gallery, heat_map, kept, masks
    from divevlm.viz.places import Grid, Panel, panels
    from divevlm.viz.plots import feedback_boxes, performance_latency, redundancy_densities

_WHERE = {
    "viz.asking": ("Comparison", "MethodAnswer", "ask"),
    "viz.canvas": ("rendered",),
    "viz.explorer": ("page", "settings"),
    "media": ("Video", "load"),
    "viz.overlays": ("evolution", "gallery", "heat_map", "kept", "masks"),
    "viz.places": ("Grid", "Panel", "panels"),
    "viz.plots": ("feedback_boxes", "performance_latency", "redundancy_densities"),
}
_LAZY = {name: f"divevlm.{module}" for module, names in _WHERE.items() for name in names}

__all__ = [
    "Comparison", "Grid", "MethodAnswer", "Panel", "Video", "ask", "evolution", "feedback_boxes", "gallery", "heat_map", "kept",
    "load", "masks", "page", "panels", "performance_latency", "redundancy_densities", "rendered", "settings",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'divevlm.viz' has no attribute {name!r}")
