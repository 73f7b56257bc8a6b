"""Where visual tokens lie on a picture: what processors crop, pad and cut into tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Box = tuple[float, float, float, float]  # left, top, width, height, as shares of a picture
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Place:
    """What a view shows: a box of the picture, or of the square that the picture is padded to. Views of one label are tiles
    of one picture."""

    label: str = ""
    box: Box = WHOLE
    padded: bool = False


def tile_places(tiles: int, size: tuple[int, int], exact: bool) -> list[Place]:
    rows, columns = tiling(tiles, size, exact)
    boxes = [(c / columns, r / rows, 1 / columns, 1 / rows) for r in range(rows) for c in range(columns)]
    return [Place("tiles", box) for box in boxes]


def tiling(tiles: int, size: tuple[int, int], exact: bool) -> tuple[int, int]:
    """Rows and columns of so many tiles: the pair that fits the picture's width / height best, as the processors choose it.

    exact: InternVL compares the ratios as they are; others scale the longer side, then round the shorter one up.
    """
    ratio = size[0] / size[1]
    pairs = [(rows, tiles // rows) for rows in range(1, tiles + 1) if tiles % rows == 0]
    if exact:
        return min(pairs, key=lambda pair: abs(pair[1] / pair[0] - ratio))
    return min(pairs, key=lambda pair: max(pair[1] / pair[0] / ratio, ratio * pair[0] / pair[1]))


def centre_crop(part: Any, size: tuple[int, int]) -> Box:
    """What is left of a picture by an image processor that scales its shorter side and cuts out the middle."""
    short, side = _length(part, "size", "shortest_edge"), _length(part, "crop_size", "height")
    if not getattr(part, "do_center_crop", False) or not short or not side:
        return WHOLE
    width, height = (min(1.0, side / short * min(size) / length) for length in size)
    return ((1 - width) / 2, (1 - height) / 2, width, height)


def _length(part: Any, setting: str, name: str) -> float | None:
    value = getattr(part, setting, None)
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
