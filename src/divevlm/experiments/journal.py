"""Results on disk as they come: one line a finished sample, appended and synced; a run that was killed goes on from there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from divevlm.core.rule import require

Key = tuple[str, int | float, str, str]  # method, keep, task, sample
Record = dict[str, Any]


def key(record: Record) -> Key:
    return record["method"], record["keep"], record["task"], record["sample"]


class Journal:
    """A folder with `run.json` (what is run) and `samples*.jsonl` (what is finished). Each process writes a file of its own and
    reads those of all, so that the number of processes may change between two starts."""

    def __init__(self, folder: Path, run: dict[str, Any], rank: int = 0) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / ("samples.jsonl" if rank == 0 else f"samples-{rank}.jsonl")
        self._check(run)
        _cut_torn(self.file)
        self.done: dict[Key, Record] = {}
        for path in sorted(folder.glob("samples*.jsonl")):
            for record in read(path):
                self.done.setdefault(key(record), record)

    def _check(self, run: dict[str, Any]) -> None:
        """The same folder is for the same run; more methods, budgets, tasks and samples may be added."""
        path = self.folder / "run.json"
        if not path.exists():
            write(path, run)
            return
        before = json.loads(path.read_text())
        for name, value in run.items():
            require(before.get(name) == value, "--out", str(self.folder), f"of a run with {name} {before.get(name)!r}")

    def __contains__(self, wanted: object) -> bool:
        return wanted in self.done

    def add(self, records: Iterable[Record]) -> None:
        """On disk when this returns."""
        fresh = {key(record): record for record in records if key(record) not in self.done}
        with self.file.open("a") as stream:
            stream.writelines(json.dumps(record) + "\n" for record in fresh.values())
            stream.flush()
            os.fsync(stream.fileno())
        self.done |= fresh


def read(path: Path) -> Iterator[Record]:
    """Finished lines; a torn last one does not count."""
    if not path.exists():
        return
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines[:-1]):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            raise ValueError(
                f"{path} must hold one JSON object a line, got {line[:40]!r} in line {number + 1}"
            ) from None


def _cut_torn(path: Path) -> None:
    """Drop what stands behind the last end of line: its sample runs again."""
    if not path.exists():
        return
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        with path.open("r+b") as stream:
            stream.truncate(end)


def write(path: Path, thing: Any) -> None:
    """The whole file or nothing of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(thing, indent=1) + "\n")
    fresh.replace(path)
