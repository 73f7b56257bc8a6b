"""Files that people asked for: checked before the work, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path


def check_target(option: str, path: Path | None, kinds: Sequence[str] = ()) -> None:
    """Before the work: can the file be written there?"""
    if path is None:
        return
    if kinds and path.suffix.lower() not in kinds:
        raise ValueError(f"{option} must be a file that ends in {' or '.join(kinds)}, got {str(path)!r}")
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise ValueError(f"{option} must be a file in a folder that is there, got {str(path)!r}")
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        allowed = "a file in a folder that can be written to"
        raise ValueError(f"{option} must be {allowed}, got {str(path)!r}: {error.strerror}") from None


def check_picture(option: str, path: Path | None) -> None:
    """Before the work: can a picture be drawn there?"""
    check_target(option, path, (".png", ".svg"))
    if path is not None and find_spec("matplotlib") is None:
        raise ValueError(f"{option} needs matplotlib (pip install 'divevlm[plot]'), got {str(path)!r}")


def write(path: Path, content: str | bytes) -> None:
    """All of it or nothing: into a file beside it that then takes its name. A link stays one: its file is replaced."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".divevlm-")
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
