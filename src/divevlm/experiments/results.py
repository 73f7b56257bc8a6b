"""From finished samples to tables: scores by task, relative averages, costs; as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from divevlm.core.metrics import relative_average
from divevlm.experiments.journal import Record
from divevlm.experiments.loading import rank
from divevlm.experiments.settings import Setting
from divevlm.files import write
from divevlm.planning import VANILLA

MEANS = ("likelihood", "redundancy", "kept", "flops", "kv", "kv_full")


def by_setting(records: Iterable[Record]) -> dict[Setting, list[Record]]:
    groups: dict[Setting, list[Record]] = defaultdict(list)
    for record in records:
        groups[Setting(record["method"], record["keep"])].append(record)
    return dict(groups)


def rows(records: Iterable[Record], settings: Sequence[Setting], tasks: Sequence[str]) -> list[dict[str, Any]]:
    """One row a setting; accuracies in percent. Only what all settings have is compared, so a run can be read at any time."""
    groups = by_setting(record for record in records if record["task"] in set(tasks))
    done = [setting for setting in settings if setting in groups]
    if not done:
        return []
    common = set.intersection(*({_question(record) for record in groups[setting]} for setting in done))
    compared = {s: [record for record in groups[s] if _question(record) in common] for s in done}
    vanilla = compared.get(Setting(VANILLA, 0))
    return [_row(setting, some, vanilla, tasks) for setting, some in compared.items()]


def _row(
    setting: Setting, records: Sequence[Record], vanilla: Sequence[Record] | None, tasks: Sequence[str]
) -> dict[str, Any]:
    """vanilla: of the same questions, if it was asked"""
    scores = _by_task(records, tasks)
    accuracy = {task: percent(values) for task, values in scores.items()}
    full = None if vanilla is None else {task: percent(values) for task, values in _by_task(vanilla, tasks).items()}
    average = relative(accuracy, full)
    return {
        "method": setting.method,
        "keep": setting.keep,
        "scores": accuracy,
        "errors": {task: _error(values) for task, values in scores.items()},
        "n": {task: len(values) for task, values in scores.items()},
        "accuracy": percent([record["score"] for record in records]),
        "error": _error([record["score"] for record in records]),
        "relative": average,
        "relative_error": None if average is None or vanilla is None else _relative_error(records, vanilla),
        **{name: known_mean(record.get(name) for record in records) for name in MEANS},
        **{name: sum(record.get(name) or 0.0 for record in records) for name in ("seconds", "prefill")},
    }


def _by_task(records: Sequence[Record], tasks: Sequence[str]) -> dict[str, list[float]]:
    """Scores of each task that has some."""
    scores = {task: [record["score"] for record in records if record["task"] == task] for task in tasks}
    return {task: values for task, values in scores.items() if values}


def relative(scores: dict[str, float], full: dict[str, float] | None) -> float | None:
    """Eq. 16; None where vanilla is unknown or gets nothing right in a task."""
    if not full or set(scores) != set(full) or not all(full.values()):
        return None
    return relative_average(scores, full)


def _relative_error(records: Sequence[Record], vanilla: Sequence[Record]) -> float | None:
    """Standard error of the relative average: ratios of paired samples, task by task (delta method), in percent.

    None where a task has a single question, of which no spread is known.
    """
    whole = {_question(record): record["score"] for record in vanilla}
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        pairs[record["task"]].append((record["score"], whole[_question(record)]))
    if any(len(of_task) < 2 for of_task in pairs.values()):
        return None
    total = 0.0
    for of_task in pairs.values():
        mean = fmean(full for _, full in of_task)
        ratio = fmean(score for score, _ in of_task) / mean
        spread = fmean((score - ratio * full) ** 2 for score, full in of_task)
        total += spread / len(of_task) / mean**2
    return 100 * math.sqrt(total) / len(pairs)


def _question(record: Record) -> tuple[str, str]:
    return record["task"], record["sample"]


def percent(values: Sequence[float]) -> float:
    return 100 * sum(values) / len(values) if values else math.nan


def error(values: Sequence[float]) -> float:
    """Standard error of a share, in percent."""
    share = sum(values) / len(values) if values else math.nan
    return 100 * math.sqrt(share * (1 - share) / len(values)) if 0 <= share <= 1 else math.nan


def _error(values: Sequence[float]) -> float | None:
    """None of a single value, of which no spread is known."""
    return error(values) if len(values) > 1 else None


def known_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table."""
    tasks = list(rows[0]["scores"]) if rows else []
    head = ["method", "keep", *tasks, "all", "relative"]
    lines = [
        [
            row["method"],
            f"{row['keep']:g}" if row["keep"] else "all",
            *(f"{row['scores'][task]:.1f}" for task in tasks),
            f"{row['accuracy']:.1f}" + ("" if row["error"] is None else f" ± {row['error']:.1f}"),
            "" if row["relative"] is None else f"{row['relative']:.2f}",
        ]
        for row in rows
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
