"""Pixels: shapes, patterns, letters and backgrounds, drawn with whole numbers so that every machine draws the same."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from divevlm_tiny.words import CHARACTERS

Pixels = NDArray[np.uint8]
Color = tuple[int, int, int]
FINE = 4  # samples per pixel and axis
GLYPH_HEIGHTS = (12, 16, 20)
RGB: dict[str, Color] = {
    "red": (212, 38, 38),
    "green": (38, 156, 60),
    "blue": (40, 80, 214),
    "yellow": (238, 212, 44),
    "orange": (240, 130, 28),
    "purple": (142, 48, 178),
    "white": (244, 244, 244),
    "black": (22, 22, 22),
}
STAR = (
    (0, -1000), (245, -337), (951, -309), (396, 129), (588, 809), (0, 416), (-588, 809), (-396, 129), (-951, -309), (-245, -337),
)  # fmt: skip


def _inside(shape: str, u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points of the square [-1, 1]^2 belong to a shape; v grows downwards."""
    if shape == "circle":
        return u * u + v * v <= 1
    if shape == "ring":
        return (u * u + v * v <= 1) & (u * u + v * v >= 0.3)
    if shape == "square":
        return np.maximum(abs(u), abs(v)) <= 0.94
    if shape == "diamond":
        return abs(u) + abs(v) <= 1
    if shape == "cross":
        return (abs(u) <= 0.34) | (abs(v) <= 0.34)
    if shape == "triangle":
        return 2 * abs(u) <= v + 1
    if shape == "heart":
        x, y = 1.2 * u, 0.15 - 1.15 * v
        r = x * x + y * y - 1
        return r * r * r - x * x * y * y * y <= 0
    inside = np.zeros(u.shape, dtype=bool)  # star: even-odd rule over its ten edges
    for (x0, y0), (x1, y1) in zip(STAR, STAR[1:] + STAR[:1], strict=True):
        crosses = (y0 > 1000 * v) != (y1 > 1000 * v)
        edge = x0 + (1000 * v - y0) * (x1 - x0) / ((y1 - y0) or 1)
        inside ^= crosses & (1000 * u < edge)
    return inside


@cache
def shape_mask(shape: str, size: int) -> NDArray[np.int32]:
    """Coverage of each pixel of a size x size box, 0 to FINE^2."""
    points = (2 * np.arange(size * FINE) + 1) / (size * FINE) - 1
    inside = _inside(shape, points[None, :] + 0 * points[:, None], points[:, None] + 0 * points[None, :])
    covered: NDArray[np.int32] = inside.reshape(size, FINE, size, FINE).sum(axis=(1, 3), dtype=np.int32)
    return covered


@cache
def pattern_mask(pattern: str, size: int) -> NDArray[np.int32]:
    """1 where the second colour of a pattern shows."""
    x, y = np.arange(size)[None, :], np.arange(size)[:, None]
    if pattern == "striped":
        return ((x + y) // 4 % 2).astype(np.int32)
    return (((x % 9 - 4) ** 2 + (y % 9 - 4) ** 2) <= 6).astype(np.int32)


@cache
def glyph(character: str, height: int) -> NDArray[np.int32]:
    """Coverage (0 to 16) of a capital letter or digit, cut to its own width."""
    with files("divevlm_tiny").joinpath(f"glyphs/{height}.png").open("rb") as stream:
        atlas = np.asarray(Image.open(stream).convert("L")).astype(np.int32)
    cell = atlas.shape[1] // len(CHARACTERS)
    index = CHARACTERS.index(character)
    box = atlas[:, index * cell : (index + 1) * cell]
    columns = np.flatnonzero(box.any(axis=0))
    return (box[:, columns[0] : columns[-1] + 1] + 8) // 16


@cache
def text_mask(text: str, height: int) -> tuple[NDArray[np.int32], tuple[tuple[int, int], ...]]:
    """A printed word, and the first and last column of each letter."""
    gap = np.zeros((height, 2), dtype=np.int32)
    parts, spans, at = [], [], 0
    for character in text.upper():
        letter = glyph(character, height)
        parts += [letter, gap]
        spans.append((at, at + letter.shape[1]))
        at += letter.shape[1] + 2
    return np.concatenate(parts[:-1], axis=1), tuple(spans)


def paint(canvas: Pixels, mask: NDArray[np.int32], color: NDArray[np.int32], x: int, y: int) -> None:
    """Lay a colour ([3] or [h, w, 3]) over the canvas where the mask (0 to 16) covers it; (x, y) is the upper left corner."""
    height, width = mask.shape
    top, left = max(0, -y), max(0, -x)
    bottom, right = min(height, canvas.shape[0] - y), min(width, canvas.shape[1] - x)
    if bottom <= top or right <= left:
        return
    if color.ndim == 3:
        color = color[top:bottom, left:right]
    under = canvas[y + top : y + bottom, x + left : x + right]
    alpha = mask[top:bottom, left:right, None]
    under[...] = (under * (16 - alpha) + color * alpha + 8) // 16


def jittered(color: Color, random: Random, amount: int = 12) -> NDArray[np.int32]:
    return np.array([min(255, max(0, part + random.randint(-amount, amount))) for part in color], dtype=np.int32)


def second_color(color: NDArray[np.int32]) -> NDArray[np.int32]:
    """The other colour of a pattern: the same hue, much lighter or darker."""
    return (color * 2 + 3) // 5 if int(color.sum()) > 330 else (color * 2 + 255 * 3) // 5


@cache
def _noise() -> NDArray[np.int32]:
    return np.random.RandomState(7).randint(-128, 128, size=(512, 512, 3)).astype(np.int32)


def _muted(random: Random) -> NDArray[np.int32]:
    gray = random.randint(105, 190)
    return np.array([gray + random.randint(-22, 22) for _ in range(3)], dtype=np.int32)


def background(random: Random, height: int, width: int) -> Pixels:
    """A muted ground: shaded, striped, checked or blotchy, with grain."""
    one, two = _muted(random), _muted(random)
    kind = random.choice(("shaded", "striped", "checked", "blotchy"))
    step, tilt = random.randint(6, 34), random.randint(-2, 2)
    x, y = np.arange(width, dtype=np.int32)[None, :], np.arange(height, dtype=np.int32)[:, None]
    if kind == "shaded":
        weight = (x * random.randint(0, 3) + y * random.randint(0, 3)) * 16 // (3 * (width + height))
    elif kind == "striped":
        weight = 16 * ((x + tilt * y) // step % 2)
    elif kind == "checked":
        weight = 16 * ((x // step + y // step) % 2)
    else:
        side = random.choice((7, 14, 28))
        top, left = random.randrange(400), random.randrange(400)
        coarse = _noise()[top : top + height // side + 1, left : left + width // side + 1, 0] // 16 + 8
        weight = np.repeat(np.repeat(coarse, side, axis=0), side, axis=1)[:height, :width]
    weight = np.broadcast_to(weight, (height, width))[:, :, None]
    top, left = random.randrange(512 - max(336, height)), random.randrange(512 - max(336, width))
    grain = _noise()[top : top + height, left : left + width] // random.choice((10, 16, 30, 60))
    return np.clip((one * (16 - weight) + two * weight) // 16 + grain, 0, 255).astype(np.uint8)


def clutter(canvas: Pixels, random: Random, amount: int) -> None:
    """Distractors that no question asks for: thin bars, specks and pale ovals in muted colours."""
    height, width = canvas.shape[:2]
    for _ in range(amount):
        color = _muted(random) + random.choice((-40, 30))
        x, y = random.randrange(-10, width), random.randrange(-10, height)
        kind = random.randrange(3)
        if kind == 0:
            long, thin = random.randint(14, 70), random.randint(2, 4)
            mask = np.full((thin, long) if random.random() < 0.5 else (long, thin), 13, dtype=np.int32)
        elif kind == 1:
            mask = shape_mask("circle", random.randint(4, 8))
        else:
            down, across = random.choice(((1, 2), (2, 1), (3, 1), (1, 3)))
            mask = shape_mask("circle", random.randint(12, 34))[::down, ::across] * 5 // 8
        paint(canvas, mask, color, x, y)
