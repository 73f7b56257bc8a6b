"""Pictures and clips from files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ogv", ".wmv", ".flv")

ANIMATED = ("GIF", "PNG", "WEBP")
DEEP = ("I", "F")  # modes of grey pictures with more than eight bits begin like this


@dataclass(frozen=True)
class Video:
    """Some frames of a video, uint8 [T, height, width, 3], and what was taken of what."""

    frames: np.ndarray[Any, Any]
    numbers: list[int]  # of each frame in the file
    total: int  # frames in the file
    fps: float  # of the file

    def __str__(self) -> str:
        return (
            f"{len(self.numbers)} of {self.total} frames, evenly spaced, of a video at {self.fps:.4g} frames a second"
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """As the video processors of transformers take it."""
        _, height, width, _ = self.frames.shape
        return {
            "total_num_frames": self.total,
            "fps": self.fps,
            "duration": self.total / self.fps,
            "frames_indices": self.numbers,
            "height": height,
            "width": width,
        }


def load(path: str | Path, frames: int = 8) -> Image.Image | Video:
    """A picture, upright and without alpha, or `frames` frames of a video (by the file's name)."""
    file = Path(path)
    if "://" in str(path):
        raise ValueError(f"IMAGE must be a file on this machine, got the address {str(path)!r}: download it first")
    if not file.is_file():
        raise ValueError(f"IMAGE must be a file, got {str(path)!r}, which is not one")
    return read_clip(file, frames) if file.suffix.lower() in VIDEOS else read_picture(file)


def read_picture(file: Path) -> Image.Image:
    """RGB, turned as its EXIF data say; what is transparent becomes white."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            return upright(opened)
    except Exception as error:  # what a decoder finds wrong with a file it tells by any exception
        raise ValueError(f"IMAGE must be a picture or a video, got {str(file)!r}: {_line(error)}") from None


def upright(opened: Image.Image) -> Image.Image:
    """A picture just opened, as RGB: turned as its EXIF data say, on white."""
    from PIL import Image, ImageOps

    frames = getattr(opened, "n_frames", 1) if opened.format in ANIMATED else 1
    if frames > 1:
        raise ValueError(f"an animation of {frames} frames: save one of them, or all as a video")
    picture = ImageOps.exif_transpose(opened)
    if picture.mode.startswith(DEEP):
        return eight_bits(picture, opened.format or "").convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


def eight_bits(picture: Image.Image, kind: str) -> Image.Image:
    """Grey values of 16 or 32 bits or floats as bytes. kind: of the file; whole numbers in PNG and PPM are of 16 bits.

    Other files of 32 bits don't say what is white: the first of 1 (floats only), 255 and 65535 that no value exceeds, or
    else the largest value. What is below 0 or no number is black.
    """
    import numpy as np
    from PIL import Image

    values = np.asarray(picture).astype(np.float64)
    largest = float(np.max(values, where=np.isfinite(values), initial=0))
    if picture.mode.startswith("I;16") or (picture.mode == "I" and kind in ("PNG", "PPM")):
        white = 65535.0
    else:
        usual = (1.0, 255.0, 65535.0) if picture.mode == "F" else (255.0, 65535.0)
        white = next((value for value in usual if largest <= value), largest)
    grey = np.nan_to_num(np.clip(values * (255 / white), 0, 255)).round().astype(np.uint8)
    clear = picture.info.get("transparency")
    return Image.fromarray(grey if clear is None else np.where(values == clear, np.uint8(255), grey))


def read_clip(file: Path, frames: int) -> Video:
    """Frames from the middles of equal stretches of the video, in order."""
    if frames < 1:
        raise ValueError(f"--frames must be at least 1, got {frames}")
    try:
        import av
    except ImportError:
        raise ValueError(f"videos need PyAV (pip install 'divevlm[video]'), got {str(file)!r}") from None
    import numpy as np

    try:
        with av.open(str(file)) as container:
            total = sum(1 for packet in container.demux(video=0) if packet.size)
        wanted = {int((i + 0.5) * total / frames) for i in range(frames)} if total > frames else set(range(total))
        decoded: dict[int, Any] = {}
        with av.open(str(file)) as container:
            rate = float(container.streams.video[0].average_rate or 1)
            for number, frame in enumerate(container.decode(video=0)):
                if number in wanted:
                    upright = np.rot90(frame.to_ndarray(format="rgb24"), getattr(frame, "rotation", 0) // 90)
                    decoded[number] = np.ascontiguousarray(upright)
    except (av.error.FFmpegError, IndexError, OSError) as error:
        raise ValueError(f"IMAGE must be a picture or a video, got {str(file)!r}: {_line(error)}") from None
    if not decoded:
        raise ValueError(f"IMAGE must be a video with at least one frame, got {str(file)!r}")
    return Video(np.stack(list(decoded.values())), list(decoded), total, rate)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
