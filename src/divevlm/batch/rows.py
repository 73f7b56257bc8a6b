"""The input: one JSON object a line. What is wrong with a line is said in its answer; the other lines go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divevlm.budget import Budget
from divevlm.checks import require


@dataclass(frozen=True)
class Row:
    """A question and its files. error: why it can't be asked; keep, max_new_tokens: instead of the job's (None)"""

    line: int  # in the input, from 1
    id: str | int | float | None = None
    question: str = ""
    images: Sequence[str] = ()
    video: str | None = None
    keep: int | float | None = None
    max_new_tokens: int | None = None
    error: str | None = None


def read(path: Path) -> tuple[list[Row], str]:
    """The rows, and a mark that changes with the file. Empty lines are none; files are relative to the input's folder."""
    require(path.is_file(), "INPUT", str(path), "a file with one JSON object a line")
    content = path.read_bytes()
    rows = [
        _row(number, line, path.resolve().parent) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()
    ]
    require(bool(rows), "INPUT", str(path), "a file with at least one row")
    return rows, f"{len(rows)} rows, sha256 {hashlib.sha256(content).hexdigest()[:16]}"


def batches(rows: Iterable[Row], size: int) -> list[list[Row]]:
    """Rows that go through the model together: in their order, with one budget and one length.

    They don't depend on what is done already, so that a run that goes on computes what an unbroken one does.
    """
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:  # 1 keeps one token, 1.0 all of them
        alike.setdefault((type(row.keep), row.keep, row.max_new_tokens), []).append(row)
    found = [some[at : at + size] for some in alike.values() for at in range(0, len(some), size)]
    return sorted(found, key=lambda batch: batch[0].line)


def _row(number: int, line: bytes, folder: Path) -> Row:
    name = None
    try:
        given = _object(line)
        name = given.get("id")
        if not isinstance(name, (str, int, float, type(None))) or name != name:  # NaN is no JSON
            told, name = name, None
            require(False, "id", told, "a word or a number")
        return Row(number, name, **_fields(given, folder))
    except ValueError as error:
        return Row(number, name, error=str(error))


def _object(line: bytes) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a row must be one JSON object, got {line[:40]!r}: {getattr(error, 'msg', error)}") from None
    require(isinstance(given, dict), "a row", given, "one JSON object")
    return dict(given)


def _fields(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Checked; names that we don't know are the user's own."""
    question, image, video = (given.get(name) for name in ("question", "image", "video"))
    require(isinstance(question, str) and bool(question.strip()), "question", question, "a text")
    require((image is None) != (video is None), "a row", sorted(given), "one with either image or video")
    images = [image] if isinstance(image, str) else [] if image is None else image
    good = isinstance(images, list) and all(isinstance(one, str) and one for one in images)
    require(good and (bool(images) or image is None), "image", image, "a path or a list of paths")
    require(video is None or (isinstance(video, str) and bool(video)), "video", video, "a path")
    keep, length = given.get("keep"), given.get("max_new_tokens")
    if keep is not None:
        require(isinstance(keep, (int, float)) and not isinstance(keep, bool), "keep", keep, "a count or a share")
        Budget(keep)
    whole = isinstance(length, int) and not isinstance(length, bool)
    require(length is None or (whole and length >= 1), "max_new_tokens", length, "a count of at least 1")
    for path in [*images, *([] if video is None else [video])]:
        require("://" not in path, "image" if video is None else "video", path, "a file on this machine")
    return {
        "question": question,
        "images": [str(folder / one) for one in images],
        "video": None if video is None else str(folder / video),
        "keep": keep,
        "max_new_tokens": length,
    }
