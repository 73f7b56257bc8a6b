"""From the input to the answers: what the journal does not have yet is asked, then all of it is put in order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from divevlm.batch.engine import Engine
from divevlm.batch.job import Job
from divevlm.batch.rows import Row, batches, read
from divevlm.checks import require
from divevlm.experiments.journal import Journal, Record, key
from divevlm.experiments.loading import machine
from divevlm.files import write

SHOWN = ("id", "answer", "kept", "visual", "seconds", "error")


def run(job: Job, engine: Engine | None = None) -> dict[str, Any]:
    """What is not answered yet, then `answers.jsonl` and `summary.json` once every row is.

    engine: one that is ready, where the caller has it
    """
    job.check()
    rows, mark = read(job.input)
    if any(row.video for row in rows):
        require(
            find_spec("av") is not None, "INPUT", str(job.input), "pictures without PyAV (pip install 'divevlm[video]')"
        )
    with Journal(job.out, job.same(mark), job.shard) as journal:
        ask(job, journal, rows, engine)
        journal.catch_up()
        done = [(row, journal.done[name]) for row in rows if (name := key(job.key(row))) in journal]
        found = summary(job, len(rows), [line(row, record) for row, record in done], journal.wall())
        if not found["left"]:
            write(job.out / "answers.jsonl", "".join(json.dumps(one) + "\n" for one in found["rows"]))
            told = {name: value for name, value in found.items() if name != "rows"}
            write(job.out / "summary.json", json.dumps(told, indent=1) + "\n")
    return found


def ask(job: Job, journal: Journal, rows: Sequence[Row], engine: Engine | None) -> None:
    """A batch of which some rows are done runs whole: its answers are then those of an unbroken run."""
    from divevlm.experiments.runner import bar

    mine = batches(rows, job.size)[job.shard :: job.shards]
    todo = [some for some in mine if any(key(job.key(row)) not in journal for row in some)]
    if not todo:
        return
    if job.engine == "ray":
        from divevlm.batch.actors import spread_rows

        spread_rows(job, journal, todo)
        return
    total = sum(map(len, mine))
    with bar(total) as tick:
        tick(total - sum(map(len, todo)), "loading the model")
        engine = engine or job.ready()
        for some in todo:
            journal.add(engine(some))
            tick(len(some), job.engine)


def line(row: Row, record: Record) -> dict[str, Any]:
    """As `answers.jsonl` has it."""
    return {"line": row.line, **{name: record[name] for name in SHOWN}}


def summary(job: Job, total: int, found: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    answered = [one for one in found if one["error"] is None]
    counts = {
        "total": total,
        "answered": len(answered),
        "failed": len(found) - len(answered),
        "left": total - len(found),
    }
    means = {f"mean_{name}": _mean([one[name] for one in answered]) for name in ("kept", "visual")}
    config = asdict(job) | {"input": str(job.input), "out": str(job.out)}
    return {**counts, **means, "wall_seconds": seconds, "config": config, "machine": machine(), "rows": found}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
