"""Results on disk as they come: one line a finished sample, appended and synced; a run that was killed goes on from there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from divevlm.core.rule import require

Key = tuple[str, int | float, str, str]  # method, keep, task, sample
Record = dict[str, Any]


def key(record: Record) -> Key:
    return record["method"], record["keep"], record["task"], record["sample"]


class Journal:
    """A folder with `samples*.jsonl` (what is finished), `run.json` (what all of it has in common) and `wall.json` (the
    seconds of all sessions). Nothing is written before the first sample. Each process writes a file of its own and reads those of
    all, so that the number of processes may change between two starts."""

    def __init__(self, folder: Path, run: dict[str, Any], rank: int = 0) -> None:
        self.folder, self.first, self.start = folder, rank == 0, time.perf_counter()
        self.file = folder / ("samples.jsonl" if rank == 0 else f"samples-{rank}.jsonl")
        _cut_torn(self.file)
        self.done: dict[Key, Record] = {}
        for path in sorted(folder.glob("samples*.jsonl")):
            for record in read(path):
                self.done.setdefault(key(record), record)
        before = self._before("run.json", {})
        for name, value in run.items():  # more methods, budgets, tasks and samples may be added
            known = before.get(name, value)
            require(known == value, "--out", str(folder), f"of a run with {name} {known!r}")
        self.run: dict[str, Any] | None = before | run  # None: on disk
        self.earlier: float = self._before("wall.json", 0.0)

    def _before(self, name: str, default: Any) -> Any:
        """What an earlier session left; one without samples does not count."""
        path = self.folder / name
        return json.loads(path.read_text()) if self.done and path.exists() else default

    def __contains__(self, wanted: object) -> bool:
        return wanted in self.done

    def add(self, records: Iterable[Record]) -> None:
        """On disk when this returns."""
        fresh = {key(record): record for record in records if key(record) not in self.done}
        if self.run is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write(self.folder / "run.json", self.run)
            self.run = None
        with self.file.open("a") as stream:
            stream.writelines(json.dumps(record) + "\n" for record in fresh.values())
            stream.flush()
            os.fsync(stream.fileno())
        self.done |= fresh
        self.wall()

    def wall(self) -> float:
        """Seconds of all sessions until now; the first process notes them."""
        seconds = self.earlier + time.perf_counter() - self.start
        if self.first and self.done:
            write(self.folder / "wall.json", seconds)
        return seconds


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
