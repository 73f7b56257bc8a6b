"""Where each visual token is on the pictures of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from divevlm.media import Video
from divevlm.models.base import Family, View, Visual
from divevlm.models.places import WHOLE, Box, Place

if TYPE_CHECKING:
    from PIL import Image


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


def panels(
    family: Family, processor: Any, visuals: Sequence[Visual], media: Sequence[Image.Image | Video]
) -> list[Panel]:
    """One for each view of an image and each frame of a video; the tiles of an image share one.

    visuals: the sample's (`SampleReport.visuals`), media: what was given, in the order of the prompt
    """
    queue, first, several = list(visuals), 0, len(media) > 1
    drawn: list[Panel] = []
    for number, medium in enumerate(media, 1):
        # a video is one visual, or to some families as many images as it has frames
        count = len(medium.frames) if isinstance(medium, Video) and queue[0].kind != "video" else 1
        views = [view for visual in queue[:count] for view in visual.views]
        del queue[:count]
        if isinstance(medium, Video):
            name = f"video {number}" if several else ""
            drawn += _video_panels(family, processor, views, medium, first, name)
        else:
            name = f"image {number}" if several else "image"
            drawn += _image_panels(family.places(processor, views, medium.size), views, medium, first, name)
        first += sum(view.size for view in views)
    return drawn


def _video_panels(
    family: Family, processor: Any, views: Sequence[View], video: Video, first: int, name: str
) -> list[Panel]:
    from PIL import Image

    each = max(1, round(len(video.frames) / len(views)))  # Qwen sees two frames as one
    drawn = []
    for number, view in enumerate(views):
        span = range(number * each, min((number + 1) * each, len(video.frames)))
        picture = Image.fromarray(video.frames[min(span.start, len(video.frames) - 1)])
        label = f"frame {span.start + 1}" if len(span) <= 1 else f"frames {span.start + 1}-{span.stop}"
        place = family.frame_place(processor, picture.size)
        drawn += _image_panels([place], [view], picture, first, f"{name} {label}".strip())
        first += view.size
    return drawn


def _image_panels(
    places: Sequence[Place], views: Sequence[View], picture: Image.Image, first: int, name: str
) -> list[Panel]:
    """Neighbouring views of one label share a panel."""
    drawn = []
    for label, group in groupby(zip(places, views, strict=True), key=lambda pair: pair[0].label):
        grids, padded = [], False
        for place, view in group:
            grids.append(Grid(first, view.rows, view.columns, view.newlines, place.box))
            padded |= place.padded
            first += view.size
        shown = _padded(picture) if padded else picture
        drawn.append(Panel(f"{name}, {label}" if label else name, shown, tuple(grids)))
    return drawn


def _padded(picture: Image.Image) -> Image.Image:
    from PIL import ImageOps

    side = max(picture.size)
    return ImageOps.pad(picture, (side, side), color="gray")
