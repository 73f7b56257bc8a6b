"""Pictures to try a model on, made on the spot: drawn scenes and something like a photograph."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from typing import Any

QUESTIONS = (
    "What is in this picture?",
    "Which colour is seen most, and where is it? Answer in one short sentence, please.",
    "Is it day or night?",
)


def pictures() -> list[tuple[str, Any]]:
    """Name and picture: two drawn scenes, upright and wide, and a photograph; without the embedded ones three photographs."""
    if find_spec("divevlm_tiny") is None:
        sizes = {"a square photograph": (336, 336), "a wide photograph": (448, 252), "a photograph": (640, 480)}
        return [(name, photograph(seed, *size)) for seed, (name, size) in enumerate(sizes.items())]
    from divevlm_tiny.scene import scene
    from PIL import Image

    drawn = [Image.fromarray(scene(seed).pixels) for seed in (1, 2)]
    wide = drawn[1].resize((448, 252))
    return [("a drawn scene", drawn[0]), ("a wide drawn scene", wide), ("a photograph", photograph())]


def photograph(seed: int = 0, width: int = 640, height: int = 480) -> Any:
    """Light, clouds and ground from noise of many scales, a round body with a shadow, grain and JPEG, as a camera leaves them.

    Statistics of a photograph (power falls with frequency, smooth shading, sensor noise), not its contents.
    """
    import numpy as np
    from PIL import Image, ImageFilter

    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    clouds = np.zeros((height, width))
    for size in (4, 8, 16, 32, 64, 128):
        rough = Image.fromarray(rng.uniform(0, 255, (size, size)).astype(np.uint8))
        clouds += np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC), dtype=float) / 255 / (size / 4)
    clouds = (clouds - clouds.min()) / np.ptp(clouds)
    horizon = 0.55 + 0.05 * np.sin(9 * x)
    sky = np.stack([120 + 110 * clouds, 160 + 80 * clouds, 225 + 20 * clouds], axis=-1)
    ground = np.stack([90 + 70 * clouds, 110 + 50 * clouds, 50 + 40 * clouds], axis=-1) * (1.2 - 0.5 * y[..., None])
    pixels = np.where((y > horizon)[..., None], ground, sky)
    radius = np.hypot((x - 0.62) * width / height, y - 0.6)
    shadow = np.hypot((x - 0.7) * width / height / 2.2, (y - 0.76) / 0.35) < 0.17
    pixels = np.where((shadow & (radius >= 0.17))[..., None], 0.55 * pixels, pixels)
    light = np.clip(1.25 - 2.4 * np.hypot((x - 0.58) * width / height, y - 0.53), 0.25, 1.2)[..., None]
    pixels = np.where((radius < 0.17)[..., None], np.array([205.0, 60.0, 45.0]) * light, pixels)
    picture = Image.fromarray(np.clip(pixels + rng.normal(0, 4, pixels.shape), 0, 255).astype(np.uint8))
    stored = BytesIO()
    picture.filter(ImageFilter.GaussianBlur(0.7)).save(stored, "JPEG", quality=90)
    return Image.open(stored).convert("RGB")
