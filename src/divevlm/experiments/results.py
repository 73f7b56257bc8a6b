"""From finished samples to tables: scores by task, relative averages, costs; as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from divevlm.core.metrics import relative_average
from divevlm.experiments.journal import Record
from divevlm.experiments.loading import rank
from divevlm.experiments.settings import Setting
from divevlm.files import write
from divevlm.planning import VANILLA

MEANS = ("likelihood", "redundancy", "kept", "flops", "kv", "kv_full")


def by_setting(records: Iterable[Record]) -> dict[Setting, list[Record]]:
    found: dict[Setting, list[Record]] = defaultdict(list)
    for record in records:
        found[Setting(record["method"], record["keep"])].append(record)
    return dict(found)


def rows(records: Iterable[Record], settings: Sequence[Setting], tasks: Sequence[str]) -> list[dict[str, Any]]:
    """One row a setting; accuracies in percent. Only what all settings have is compared, so a run can be read at any time."""
    found = by_setting(record for record in records if record["task"] in set(tasks))
    settings = [setting for setting in settings if setting in found]
    common = set.intersection(*({_of(r) for r in found[s]} for s in settings)) if settings else set()
    full: dict[str, float] | None = None
    whole: dict[tuple[str, str], float] = {}
    made = []
    for setting in settings:
        some = [record for record in found[setting] if _of(record) in common]
        scores = {task: [r["score"] for r in some if r["task"] == task] for task in tasks}
        accuracy = {task: 100 * _mean(values) for task, values in scores.items() if values}
        if setting.method == VANILLA:
            full, whole = accuracy, {_of(r): r["score"] for r in some}
        everything = [r["score"] for r in some]
        made.append(
            {
                "method": setting.method,
                "keep": setting.keep,
                "scores": accuracy,
                "errors": {task: _error(values) for task, values in scores.items() if values},
                "n": {task: len(values) for task, values in scores.items() if values},
                "accuracy": 100 * _mean(everything),
                "error": _error(everything),
                "relative": relative(accuracy, full),
                "relative_error": _relative_error(some, whole) if relative(accuracy, full) is not None else None,
                **{name: _known(r.get(name) for r in some) for name in MEANS},
                **{name: sum(r.get(name) or 0.0 for r in some) for name in ("seconds", "prefill")},
            }
        )
    return made


def relative(scores: dict[str, float], full: dict[str, float] | None) -> float | None:
    """Eq. 16; None where vanilla is unknown or gets nothing right in a task."""
    if not full or set(scores) != set(full) or not all(full.values()):
        return None
    return relative_average(scores, full)


def _relative_error(some: Sequence[Record], whole: dict[tuple[str, str], float]) -> float:
    """Standard error of the relative average: ratios of paired samples, task by task (delta method), in percent."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in some:
        pairs[record["task"]].append((record["score"], whole[_of(record)]))
    total = 0.0
    for found in pairs.values():
        mean = _mean([full for _, full in found])
        ratio = _mean([score for score, _ in found]) / mean
        spread = sum((score - ratio * full) ** 2 for score, full in found) / len(found)
        total += spread / len(found) / mean**2
    return 100 * math.sqrt(total) / len(pairs)


def _of(record: Record) -> tuple[str, str]:
    return record["task"], record["sample"]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _error(values: Sequence[float]) -> float:
    """Standard error of a share, in percent."""
    mean = _mean(values)
    return 100 * math.sqrt(mean * (1 - mean) / len(values)) if values and 0 <= mean <= 1 else math.nan


def _known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean(known) if known else None


def cells(made: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table."""
    tasks = list(made[0]["scores"]) if made else []
    head = ["method", "keep", *tasks, "all", "relative"]
    lines = [
        [
            row["method"],
            f"{row['keep']:g}" if row["keep"] else "all",
            *(f"{row['scores'][task]:.1f}" for task in tasks),
            f"{row['accuracy']:.1f} ± {row['error']:.1f}",
            "" if row["relative"] is None else f"{row['relative']:.2f}",
        ]
        for row in made
    ]
    return head, lines


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def comma_separated(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([head, *lines])
    return stream.getvalue()


def save(
    folder: Path, name: str, result: dict[str, Any], head: Sequence[str], lines: Sequence[Sequence[str]], title: str
) -> None:
    """NAME.json, NAME.md and NAME.csv, by the first process."""
    if rank()[0]:
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{name}.json", json.dumps(result, indent=1) + "\n")
    write(folder / f"{name}.md", f"{title}\n\n{markdown(head, lines)}\n")
    write(folder / f"{name}.csv", comma_separated(head, lines))
