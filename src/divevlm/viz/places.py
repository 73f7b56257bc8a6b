"""Where each visual token is on the pictures that were shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from divevlm.models.base import View, Visual
from divevlm.viz.media import Clip

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[float, float, float, float]  # left, top, width, height, as shares of a picture
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Grid:
    """Tokens `first`, `first` + 1, ... in reading order over a part of a picture; `newlines`: a marker token ends each row."""

    first: int
    rows: int
    columns: int
    newlines: bool = False
    box: Box = WHOLE

    def cells(self) -> dict[int, Box]:
        left, top, width, height = self.box
        wide, high = width / self.columns, height / self.rows
        return {
            self.first + row * (self.columns + self.newlines) + column: (left + column * wide, top + row * high, wide, high)
            for row in range(self.rows)
            for column in range(self.columns)
        }  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """A picture and the tokens that show it."""

    label: str
    picture: Image.Image
    grids: tuple[Grid, ...]

    def cells(self) -> dict[int, Box]:
        """Where each token of the panel is."""
        return {token: box for grid in self.grids for token, box in grid.cells().items()}


def panels(family: str, processor: Any, visuals: Sequence[Visual], media: Sequence[Image.Image | Clip]) -> list[Panel]:
    """One for each view of an image and each frame of a video; the tiles of an image share one.

    visuals: the sample's (`SampleReport.visuals`), media: what was given, in the order of the prompt
    """
    queue, first, made = list(visuals), 0, []
    for number, shown in enumerate(media, 1):
        if isinstance(shown, Clip):
            mine = _frames(queue, shown)
            made += _clip_panels(family, processor, mine, shown, first, f"video {number}" if len(media) > 1 else "")
        else:
            mine = [queue.pop(0)]
            made += _image_panels(
                family, processor, mine[0].views, shown, first, f"image {number}" if len(media) > 1 else "image"
            )
        first += sum(visual.size for visual in mine)
    return made


def _frames(queue: list[Visual], clip: Clip) -> list[Visual]:
    """A clip is one video, or to some families as many images as it has frames."""
    count = 1 if queue[0].kind == "video" else len(clip.frames)
    mine = queue[:count]
    del queue[:count]
    return mine


def _clip_panels(family: str, processor: Any, visuals: list[Visual], clip: Clip, first: int, name: str) -> list[Panel]:
    from PIL import Image

    views = [view for visual in visuals for view in visual.views]
    each = max(1, round(len(clip.frames) / len(views)))  # Qwen sees two frames as one
    crops = getattr(processor, "video_processor", None) if family == "llava_next_video" else None
    made = []
    for number, view in enumerate(views):
        shown = range(number * each, min((number + 1) * each, len(clip.frames)))
        picture = Image.fromarray(clip.frames[min(shown.start, len(clip.frames) - 1)])
        label = f"frame {shown.start + 1}" if len(shown) <= 1 else f"frames {shown.start + 1}-{shown.stop}"
        box = seen(crops, picture.size)
        made.append(Panel(f"{name} {label}".strip(), picture, (_grid(view, first, box),)))
        first += view.size
    return made


def _image_panels(
    family: str, processor: Any, views: tuple[View, ...], picture: Image.Image, first: int, name: str
) -> list[Panel]:
    starts = [first + sum(view.size for view in views[:i]) for i in range(len(views))]
    if family in ("internvl", "idefics3", "smolvlm") and len(views) > 1:
        rows, columns = tiling(len(views) - 1, picture.size, exact=family == "internvl")
        boxes = [(c / columns, r / rows, 1 / columns, 1 / rows) for r in range(rows) for c in range(columns)]
        tiles = tuple(_grid(view, start, box) for view, start, box in zip(views, starts, boxes, strict=False))
        return [
            Panel(f"{name}, tiles", picture, tiles),
            Panel(f"{name}, whole", picture, (_grid(views[-1], starts[-1]),)),
        ]
    if len(views) == 2:
        labels = (f"{name}, base view", f"{name}, tiles")
        return [
            Panel(label, picture, (_grid(view, start),))
            for label, view, start in zip(labels, views, starts, strict=True)
        ]
    part = getattr(processor, "image_processor", None) if family == "llava" else None
    if family == "llava_onevision" or getattr(part, "do_pad", False):  # one view there is one among others
        return [Panel(name, _padded(picture), (_grid(views[0], first),))]
    return [Panel(name, picture, (_grid(views[0], first, seen(part, picture.size)),))]


def tiling(tiles: int, size: tuple[int, int], exact: bool) -> tuple[int, int]:
    """Rows and columns of so many tiles: the pair that fits the picture's width / height best, as the processors choose it.

    exact: InternVL compares the ratios as they are; others scale the longer side, then round the shorter one up.
    """
    ratio = size[0] / size[1]
    pairs = [(rows, tiles // rows) for rows in range(1, tiles + 1) if tiles % rows == 0]
    if exact:
        return min(pairs, key=lambda pair: abs(pair[1] / pair[0] - ratio))
    return min(pairs, key=lambda pair: max(pair[1] / pair[0] / ratio, ratio * pair[0] / pair[1]))


def _grid(view: View, first: int, box: Box = WHOLE) -> Grid:
    return Grid(first, view.rows, view.columns, view.newlines, box)


def seen(part: Any, size: tuple[int, int]) -> Box:
    """What of a picture is left by an image processor that scales its shorter side and cuts out the middle."""
    short, side = _length(part, "size", "shortest_edge"), _length(part, "crop_size", "height")
    if not getattr(part, "do_center_crop", False) or not short or not side:
        return WHOLE
    width, height = (min(1.0, side / short * min(size) / length) for length in size)
    return ((1 - width) / 2, (1 - height) / 2, width, height)


def _length(part: Any, setting: str, name: str) -> float | None:
    found = getattr(part, setting, None)
    return found.get(name) if isinstance(found, dict) else getattr(found, name, None)


def _padded(picture: Image.Image) -> Image.Image:
    from PIL import ImageOps

    side = max(picture.size)
    return ImageOps.pad(picture, (side, side), color="gray")
