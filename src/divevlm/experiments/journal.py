"""Results on disk as they come: one line a finished sample, appended and synced; a run that was killed goes on from there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch and transformers bring it

from divevlm.checks import require
from divevlm.files import write

Key = tuple[str, int | float, str, str]  # method, keep, task, sample
Record = dict[str, Any]
LOCK = ".lock"


def key(record: Record) -> Key:
    return record["method"], record["keep"], record["task"], record["sample"]


class Journal:
    """A folder with `samples*.jsonl` (what is finished), `run.json` (what all of it has in common) and `wall.json` (the
    seconds of all sessions). No sample is there before `run.json` is. Each process writes a file of its own and reads those of
    all, so that the number of processes may change between two starts; a second run on the folder is refused until `close`.

    later: names of `run` that earlier samples need not have had (more tasks may be added)
    """

    def __init__(self, folder: Path, run: dict[str, Any], rank: int = 0, later: Iterable[str] = ()) -> None:
        self.folder, self.first, self.start = folder, rank == 0, time.perf_counter()
        self.file = folder / ("samples.jsonl" if rank == 0 else f"samples-{rank}.jsonl")
        self.fresh_folder = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(folder / (LOCK if rank == 0 else f"{LOCK}-{rank}"))
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"--out must be a folder that no other run is writing to, got {str(folder)!r}") from None
        try:
            self._open(run, set(later))
        except BaseException:
            self.close()
            raise

    def _open(self, run: dict[str, Any], later: set[str]) -> None:
        _cut_torn(self.file)
        self.done: dict[Key, Record] = {}
        self.read_until: dict[Path, int] = {}
        self.catch_up()
        before = self._before("run.json", dict)
        require(
            before is not None or not self.done,
            "--out",
            str(self.folder),
            "a folder whose run.json says what made its samples (it is missing)",
        )
        before = before or {}
        for name, value in run.items() if self.done else ():  # more methods, budgets, tasks and samples may be added
            known = before.get(name, value if name in later else None)
            require(known == value, "--out", str(self.folder), f"of a run with {name} {known!r}")
        self.run: dict[str, Any] | None = before | run  # None: on disk
        self.earlier: float = self._before("wall.json", float) or 0.0

    def _before(self, name: str, kind: type) -> Any:
        """What an earlier session left; one without samples does not count."""
        path = self.folder / name
        if not self.done or not path.exists():
            return None
        try:
            value = json.loads(path.read_text())
        except ValueError:
            value = None
        good = isinstance(value, (float, int) if kind is float else kind)
        require(good, "--out", str(self.folder), f"a folder with whole files ({path} is empty or damaged)")
        return value

    def catch_up(self) -> dict[Key, Record]:
        """Everything that is finished by now, of all processes; a line is read once."""
        for path in sorted(self.folder.glob("samples*.jsonl")):
            records, end = read_from(path, self.read_until.get(path, 0))
            self.read_until[path] = end
            for record in records:
                self.done.setdefault(key(record), record)
        return self.done

    def __contains__(self, wanted: object) -> bool:
        return wanted in self.done

    def add(self, records: Iterable[Record]) -> None:
        """On disk when this returns."""
        fresh = {key(record): record for record in records if key(record) not in self.done}
        if self.run is not None:
            write(self.folder / "run.json", json.dumps(self.run, indent=1) + "\n")
            self.run = None
        with self.file.open("a") as stream:
            stream.writelines(json.dumps(record) + "\n" for record in fresh.values())
            stream.flush()
            os.fsync(stream.fileno())
            self.read_until[self.file] = stream.tell()
        self.done |= fresh
        self.wall()

    def wall(self) -> float:
        """Seconds of all sessions until now; the first process notes them."""
        seconds = self.earlier + time.perf_counter() - self.start
        if self.first and self.done:
            write(self.folder / "wall.json", json.dumps(seconds) + "\n")
        return seconds

    def close(self) -> None:
        """The folder is free again; one that we made and left empty goes."""
        self.lock.release()
        if self.fresh_folder and {path.name for path in self.folder.iterdir()} <= {Path(self.lock.lock_file).name}:
            Path(self.lock.lock_file).unlink(missing_ok=True)
            self.folder.rmdir()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path) -> Iterator[Record]:
    """Finished lines of a file; a torn last one does not count."""
    yield from read_from(path, 0)[0]


def read_from(path: Path, start: int) -> tuple[list[Record], int]:
    """Finished lines behind that byte, and the byte behind the last of them."""
    if not path.exists():
        return [], start
    with path.open("rb") as stream:
        stream.seek(start)
        whole = stream.read()
    end = whole.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(whole[:end].split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            key(record)
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{path} must hold one JSON object of a sample a line, got {line[:40]!r} in line {number}"
            ) from None
        records.append(record)
    return records, start + end


def _cut_torn(path: Path) -> None:
    """Drop what stands behind the last end of line: its sample runs again."""
    if not path.exists():
        return
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        with path.open("r+b") as stream:
            stream.truncate(end)
