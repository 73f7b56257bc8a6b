"""Pictures and clips from files."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from divevlm.media import load


def test_exif_rotation(tmp_path):
    picture = Image.new("RGB", (30, 20), "white")
    picture.putpixel((0, 0), (255, 0, 0))
    exif = picture.getexif()
    exif[0x0112] = 6  # turned a quarter: the first row is the right side
    picture.save(tmp_path / "turned.png", exif=exif)
    upright = load(tmp_path / "turned.png")
    assert upright.size == (20, 30)
    assert upright.getpixel((19, 0)) == (255, 0, 0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_what_is_transparent_becomes_white(tmp_path, mode):
    picture = Image.new("RGBA", (4, 4), (200, 0, 0, 255))
    picture.paste((0, 0, 0, 0), (0, 0, 2, 4))
    picture.convert(mode if mode != "PA" else "P").save(tmp_path / "a.png")
    loaded = load(tmp_path / "a.png")
    assert loaded.mode == "RGB"
    if mode != "PA":  # a palette without transparency keeps its black
        assert loaded.getpixel((0, 0)) == (255, 255, 255)
    assert loaded.getpixel((3, 0)) != (255, 255, 255)


@pytest.mark.parametrize("mode", ["L", "1", "CMYK", "I;16", "RGB"])
def test_any_mode_becomes_rgb(tmp_path, mode):
    file = tmp_path / ("a.tif" if mode in ("CMYK", "I;16") else "a.png")
    Image.new(mode, (5, 3), 40000 if mode == "I;16" else None).save(file)
    loaded = load(file)
    assert (loaded.mode, loaded.size) == ("RGB", (5, 3))
    if mode == "I;16":
        assert loaded.getpixel((0, 0)) == (156, 156, 156)


STAIRS = np.array([[0, 100, 20000], [40000, 50000, 65535]])


def shades(file):
    loaded = load(file)
    assert loaded.mode == "RGB"
    return np.asarray(loaded)[..., 0].tolist()


@pytest.mark.parametrize(
    ("file", "kind"),
    [("a.png", "<u2"), ("little.tif", "<u2"), ("big.tif", ">u2"), ("a.pgm", "<u2"), ("whole.tif", "i4")],
)
def test_sixteen_bits_become_eight(tmp_path, file, kind):
    Image.fromarray(STAIRS.astype(kind)).save(tmp_path / file)
    assert shades(tmp_path / file) == [[0, 0, 78], [156, 195, 255]]


def test_a_dark_picture_of_sixteen_bits_stays_dark(tmp_path):
    for file, kind in (("a.png", "<u2"), ("a.pgm", "<u2"), ("big.tif", ">u2")):
        Image.fromarray(np.full((2, 2), 200).astype(kind)).save(tmp_path / file)
        assert shades(tmp_path / file) == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([-3.0, 0.2, 200.0], [0, 0, 200]),
        ([0.0, 40000.0, 65535.0], [0, 156, 255]),
        ([0.0, 1e5, 2e5], [0, 128, 255]),
        ([float("nan"), float("inf"), 0.5], [0, 255, 128]),
        ([0, 7, 255], [0, 7, 255]),
        ([-5, 2**30, 2**31 - 1], [0, 128, 255]),
    ],
)
def test_values_that_name_no_white(tmp_path, values, wanted):
    kind = "f4" if isinstance(values[0], float) else "i4"
    Image.fromarray(np.array([values], kind)).save(tmp_path / "a.tif")
    assert shades(tmp_path / "a.tif") == [wanted]


def test_what_is_transparent_at_sixteen_bits_becomes_white(tmp_path):
    Image.fromarray(STAIRS.astype("<u2")).save(tmp_path / "a.png", transparency=40000)
    assert shades(tmp_path / "a.png") == [[0, 0, 78], [255, 195, 255]]


def test_any_complaint_of_a_decoder_is_one_line(tmp_path):
    file = tmp_path / "a.webp"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 8)).save(file, exif=exif)
    file.write_bytes(file.read_bytes().replace(b"MM\x00*", b"MM\x00\xfb"))  # Pillow raises a SyntaxError
    with pytest.raises(ValueError, match="IMAGE must be a picture or a video, got"):
        load(file)


def write_video(path, count, size=(64, 48)):
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), 10 * number, np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def test_frames_are_evenly_spaced(tmp_path):
    write_video(tmp_path / "a.mp4", 20)
    clip = load(tmp_path / "a.mp4", frames=4)
    assert clip.numbers == [2, 7, 12, 17]
    assert clip.frames.shape == (4, 48, 64, 3)
    assert clip.frames.mean(axis=(1, 2, 3)) == pytest.approx([20, 70, 120, 170], abs=6)
    assert str(clip) == "4 of 20 frames, evenly spaced, of a video at 10 frames a second"
    assert clip.metadata["duration"] == 2
    short = load(tmp_path / "a.mp4", frames=50)
    assert short.numbers == list(range(20))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothing.png", None, "IMAGE must be a file, got"),
        ("text.png", b"hello", "IMAGE must be a picture or a video, got"),
        ("text.mp4", b"hello", "IMAGE must be a picture or a video, got"),
        ("cut.png", b"\x89PNG\r\n\x1a\n", "IMAGE must be a picture or a video, got"),
    ],
)
def test_what_is_no_picture_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / name)


def test_pillow_is_new_enough_to_know_what_is_transparent():
    """`has_transparency_data` came with 10.1."""
    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {one for needed in extras.values() for one in needed if one.startswith("pillow")} == {"pillow>=10.1"}


def test_addresses_are_refused():
    with pytest.raises(ValueError, match="download it first"):
        load("https://example.org/a.png")
