"""A scene: a few objects of very different sizes on a cluttered ground, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from random import Random

import numpy as np
from numpy.typing import NDArray

from divevlm_tiny.draw import (
    GLYPH_HEIGHTS,
    RGB,
    Pixels,
    background,
    clutter,
    jittered,
    paint,
    pattern_mask,
    second_color,
    shape_mask,
    text_mask,
)
from divevlm_tiny.words import COLORS, DIGITS, PATTERNS, SHAPES, SIGN, SIGN_WORDS, UNSEEN

PATCH, GRID = 14, 24
SIDE = PATCH * GRID  # 336
SMALL = (14, 20)  # pixels; one or two patches across
MEDIUM = (26, 44)
LARGE = (50, 92)
GAP = 5  # free pixels between two objects, at least


@dataclass(frozen=True)
class SceneItem:
    """One object; x, y is its centre and w, h its box, in pixels of the whole image."""

    shape: str
    color: str
    pattern: str
    x: int
    y: int
    w: int
    h: int
    text: str = ""
    glyphs: int = 0  # height of the letters on a sign

    @property
    def size(self) -> int:
        return max(self.w, self.h)

    @property
    def small(self) -> bool:
        return self.shape != SIGN and self.size <= SMALL[1]

    @property
    def box(self) -> tuple[int, int, int, int]:
        left, top = self.x - self.w // 2, self.y - self.h // 2
        return left, top, left + self.w, top + self.h


@dataclass(frozen=True)
class Scene:
    """What is drawn where: `rows` x `columns` patches.

    A window (used in training only) is a part of the grid of 24 x 24, at `row`, `column`; `whole` pictures of any size are
    all there is.
    """

    seed: int
    items: tuple[SceneItem, ...]
    row: int = 0
    column: int = 0
    rows: int = GRID
    columns: int = GRID
    whole: bool = False
    _cover: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def middle(self) -> tuple[int, int]:
        """x, y of the middle of the picture that this is (or is a window of)."""
        return (self.columns * PATCH // 2, self.rows * PATCH // 2) if self.whole else (SIDE // 2, SIDE // 2)

    @cached_property
    def pixels(self) -> Pixels:
        """[14 rows, 14 columns, 3] uint8."""
        random = Random(f"pixels {self.seed}")
        height, width = self.rows * PATCH, self.columns * PATCH
        canvas = background(random, height, width)
        clutter(canvas, random, random.randint(2, 14) * self.rows * self.columns // 100)
        for item in self.items:
            color = jittered(RGB[item.color], random)
            left, top = item.box[0] - self.column * PATCH, item.box[1] - self.row * PATCH
            if item.shape == SIGN:
                paint(canvas, np.full((item.h, item.w), 16, dtype=np.int32), color, left, top)
                ink = jittered(RGB["black" if int(color.sum()) > 330 else "white"], random)
                paint(canvas, text_mask(item.text, item.glyphs)[0], ink, left + 4, top + 4)
            elif item.pattern == "solid":
                paint(canvas, shape_mask(item.shape, item.w), color, left, top)
            else:
                mask = pattern_mask(item.pattern, item.w)[:, :, None]
                paint(
                    canvas, shape_mask(item.shape, item.w), color * (1 - mask) + second_color(color) * mask, left, top
                )
        return canvas

    def cover(self, index: int) -> NDArray[np.int64]:
        """How many pixels of each patch an object covers. [rows, columns], whole numbers of 1/16 pixel."""
        if index not in self._cover:
            item = self.items[index]
            mask = np.full((item.h, item.w), 16) if item.shape == SIGN else shape_mask(item.shape, item.w)
            left, top = item.box[0] - self.column * PATCH, item.box[1] - self.row * PATCH
            r0, c0 = top // PATCH, left // PATCH
            r1, c1 = (top + item.h - 1) // PATCH + 1, (left + item.w - 1) // PATCH + 1
            whole = np.zeros(((r1 - r0) * PATCH, (c1 - c0) * PATCH), dtype=np.int64)
            whole[top - r0 * PATCH :, left - c0 * PATCH :][: item.h, : item.w] = mask
            cells = np.zeros((self.rows, self.columns), dtype=np.int64)
            cells[r0:r1, c0:c1] = whole.reshape(r1 - r0, PATCH, c1 - c0, PATCH).sum(axis=(1, 3))
            self._cover[index] = cells
        return self._cover[index]

    def figure(self) -> NDArray[np.int32]:
        """How much of each pixel belongs to an object, 0 to 16; the letters of a sign do not. [14 rows, 14 columns]"""
        whole = np.zeros((self.rows * PATCH, self.columns * PATCH), dtype=np.int32)
        for item in self.items:
            left, top = item.box[0] - self.column * PATCH, item.box[1] - self.row * PATCH
            part = whole[top : top + item.h, left : left + item.w]
            if item.shape == SIGN:
                part[:] = 16
                part[4:-4, 4:-4] -= text_mask(item.text, item.glyphs)[0]
            else:
                np.maximum(part, shape_mask(item.shape, item.w), out=part)
        return whole

    def patches(self, index: int) -> list[int]:
        """The patches that show an object: those it covers by a sixth, or best."""
        cells = self.cover(index).ravel()
        enough = min(16 * PATCH * PATCH // 6, int(cells.max()))
        return [int(cell) for cell in np.flatnonzero(cells >= enough)]


def scene(
    seed: int,
    *,
    many: bool = False,
    unseen: bool = False,
    signs: bool = False,
    rows: int = GRID,
    columns: int = GRID,
    whole: bool = False,
) -> Scene:
    """Draw the plan of a scene.

    many: 15-22 objects instead of 4-16; unseen: colour-shape pairs that training never shows; signs: mostly signs
    (training only, to learn to read); rows, columns: a window of the grid, or with `whole` a picture of that size.
    """
    random = Random(f"scene {seed}")
    row, column = (0, 0) if whole else (random.randint(0, GRID - rows), random.randint(0, GRID - columns))
    area = rows * columns
    most = max(3, round(16 * (area / GRID**2) ** 0.75))
    count = random.randint(15, 22) if many else random.randint(min(4, max(2, most // 2)), most)
    kinds = _kinds(random, count, unseen)
    if signs:
        kinds = [(SIGN, color) for _, color in kinds[:-1]] + kinds[-1:]
    sizes = [_size(random, min(rows, columns) * PATCH) for _ in kinds]
    items: list[SceneItem] = []
    for (shape, color), size in sorted(zip(kinds, sizes, strict=True), key=lambda pair: -pair[1]):
        item = _place(random, items, shape, color, size, (row, column, rows, columns))
        if item is not None:
            items.append(item)
    return Scene(seed, tuple(items), row, column, rows, columns, whole)


def _kinds(random: Random, count: int, unseen: bool) -> list[tuple[str, str]]:
    """Shapes and colours: one group of 1-4 that shares a shape or a colour (for counting), one to three signs, and others."""
    shape, color, by_shape = random.choice(SHAPES), random.choice(COLORS), random.random() < 0.5
    signs = min(random.choice((0, 1, 1, 2, 3)), count // 3)
    kinds: list[tuple[str, str]] = [(SIGN, random.choice(COLORS)) for _ in range(signs)]
    kinds += [
        (shape, random.choice(COLORS)) if by_shape else (random.choice(SHAPES), color)
        for _ in range(random.randint(1, 4))
    ]
    kinds = kinds[: count - 1]
    while len(kinds) < count:
        kinds.append((random.choice(SHAPES), random.choice(COLORS)))
    allowed = []
    for form, tint in kinds:
        while form != SIGN and not unseen and (tint, form) in UNSEEN:
            form, tint = (form, random.choice(COLORS)) if by_shape else (random.choice(SHAPES), tint)
        allowed.append((form, tint))
    if unseen:
        for place in random.sample(range(count), count // 3):
            if allowed[place][0] != SIGN:
                tint, form = random.choice(sorted(UNSEEN))
                allowed[place] = form, tint
    return allowed


def _size(random: Random, side: int) -> int:
    low, high = random.choice((SMALL, SMALL, MEDIUM, MEDIUM, LARGE))
    return random.randint(min(low, side // 3), min(high, side // 2))


def _place(
    random: Random, others: list[SceneItem], shape: str, color: str, size: int, window: tuple[int, int, int, int]
) -> SceneItem | None:
    row, column, rows, columns = (PATCH * value for value in window)
    text, glyphs, pattern, w, h = "", 0, "solid", size, size
    if shape == SIGN:
        text = random.choice(DIGITS if random.random() < 0.4 else SIGN_WORDS)
        glyphs = random.choice(GLYPH_HEIGHTS)
        mask = text_mask(text, glyphs)[0]
        h, w = mask.shape[0] + 8, mask.shape[1] + 8
    elif size > SMALL[1]:
        pattern = random.choice(PATTERNS)
    if w > columns or h > rows:
        return None
    for _ in range(30):
        left, top = column + random.randint(0, columns - w), row + random.randint(0, rows - h)
        item = SceneItem(shape, color, pattern, left + w // 2, top + h // 2, w, h, text, glyphs)
        if not any(_touch(item, other) for other in others):
            return item
    return None


def _touch(one: SceneItem, two: SceneItem) -> bool:
    a, b = one.box, two.box
    return a[0] < b[2] + GAP and b[0] < a[2] + GAP and a[1] < b[3] + GAP and b[1] < a[3] + GAP
