"""Pictures and clips: a colour gradient, a few coloured boxes and a little noise, all drawn from a seed."""

import numpy as np
from PIL import Image

BOXES = 4


def picture(seed: int, width: int, height: int) -> Image.Image:
    return Image.fromarray(_draw(seed, width, height, shift=0.0))


def clip(seed: int, frames: int, width: int, height: int) -> np.ndarray:
    """One scene whose boxes drift to the right: uint8 [frames, height, width, 3]."""
    return np.stack([_draw(seed, width, height, shift=t / (2 * frames)) for t in range(frames)])


def _draw(seed: int, width: int, height: int, shift: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corner, across, down = rng.uniform(0, 255, (3, 3))
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j][..., None]
    canvas = corner + (across - corner) * x + (down - corner) * y
    for _ in range(BOXES):
        left, top = rng.uniform(0, 0.8, 2)
        wide, high = rng.uniform(0.1, 0.5, 2)
        colour = rng.uniform(0, 255, 3)
        inside = (np.abs((x - left - shift) % 1 - wide / 2) < wide / 2) & (np.abs(y - top - high / 2) < high / 2)
        canvas = np.where(inside, colour, canvas)
    canvas = canvas + rng.normal(0, 8, canvas.shape)
    return canvas.clip(0, 255).astype(np.uint8)
