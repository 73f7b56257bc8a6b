"""What all pictures share: colours that colour-blind eyes tell apart, cells on a picture, PNG and SVG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from divevlm.models.places import Box
from divevlm.viz.places import Panel

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442",
)  # fmt: skip
LINES = (
    (BLUE, "o", "-"),
    (ORANGE, "s", "--"),
    (GREEN, "^", "-."),
    (RED, "D", ":"),
    (PURPLE, "v", "-"),
    (SKY, "P", "--"),
)
COLUMN, PAGE = 3.4, 7.0  # inches: one column of a paper, and both
FONT = 8


def figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes [rows][columns]; no global state, no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("pictures need matplotlib: pip install 'divevlm[plot]'") from None
    chart = Figure(figsize=(width, height), layout="constrained")
    return chart, chart.subplots(rows, columns, squeeze=False)


def rendered(chart: Any, kind: str = ".png", dpi: int = 200) -> bytes:
    """The file's content; kind: ".png" or ".svg"."""
    if kind.lower() not in (".png", ".svg"):
        raise ValueError(f"a picture must be a .png or .svg file, got {kind!r}")
    file = io.BytesIO()
    with warnings.catch_warnings():  # an answer may hold signs that the font does not have
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        chart.savefig(file, format=kind.lower()[1:], dpi=dpi, bbox_inches="tight", pad_inches=0.03)
    return file.getvalue()


def show(axes: Any, panel: Panel, title: str = "") -> None:
    """The picture in a unit square of its own shape: cells are shares of it."""
    picture = panel.picture.convert("RGB")
    axes.imshow(picture, extent=(0, 1, 1, 0), aspect=picture.height / picture.width, interpolation="bilinear")
    axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if title:
        axes.set_title(title, fontsize=FONT, pad=3)


def cells(axes: Any, boxes: Iterable[Box], **style: Any) -> None:
    """Rectangles, drawn as one collection."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    drawn = [Rectangle((left, top), width, height) for left, top, width, height in boxes]
    axes.add_collection(PatchCollection(drawn, **({"linewidths": 0} | style)))


def darken(axes: Any, panel: Panel, kept: set[int], strength: float = 0.72) -> None:
    """What is dropped steps back; what is kept stays as it is, with a thin frame."""
    places = panel.cells()
    cells(axes, (box for token, box in places.items() if token not in kept), facecolors=(0.08, 0.08, 0.1, strength))
    cells(
        axes,
        (box for token, box in places.items() if token in kept),
        facecolors="none", edgecolors=ORANGE, linewidths=0.6,
    )  # fmt: skip


def heat(axes: Any, panel: Panel, values: Mapping[int, float], top: float, strength: float = 0.75) -> None:
    """Each token in the colour of its value, from 0 to `top`."""
    from matplotlib import colormaps

    places = {token: box for token, box in panel.cells().items() if token in values}
    shades = colormaps["viridis"]([min(1.0, max(0.0, values[token] / (top or 1))) for token in places])
    cells(axes, places.values(), facecolors=shades, alpha=strength)


def bar(chart: Any, axes: Any, top: float, label: str) -> None:
    """The scale of a heat map."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = chart.colorbar(ScalarMappable(Normalize(0, top), "viridis"), ax=axes, fraction=0.03, pad=0.02)
    scale.set_label(label, fontsize=FONT)
    scale.ax.tick_params(labelsize=FONT - 1)
