"""Methods against one of them, question by question, over several trainings of the embedded model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

from divevlm.terminal import table


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Files of `bench accuracy`; all must answer the same questions."""
    results: list[dict[str, Any]] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise ValueError(f"FILE must be given once, got {str(path)!r} twice")
        seen.add(path.resolve())
        try:
            result = json.loads(path.read_text())
            good = _good(result)
        except (ValueError, KeyError, TypeError):  # no JSON, or another one
            good = False
        if not good:
            allowed = "what `divevlm bench accuracy --out` writes, with what was right in each row (older ones lack it)"
            raise ValueError(f"FILE must be {allowed}, got {str(path)!r}")
        results.append(result)
        same = all(result.get(key) == results[0].get(key) for key in ("n", "split", "majority"))
        if not same or result.get("clips", False) != results[0].get("clips", False):
            here, there = (f"{of['n']} of {of['split']} for {of['model']}" for of in (result, results[0]))
            given = f"{here} in {str(path)!r}, {there} in {str(paths[0])!r}"
            raise ValueError(f"FILE must hold the same questions as the others, got {given}")
    return results


def _good(result: dict[str, Any]) -> bool:
    rows, n = result["rows"], result["n"]
    marked = all(len(row["right"]) == n > 0 and set(row["right"]) <= {"0", "1"} for row in rows)
    named = all(isinstance(row["method"], str) and isinstance(row["keep"], (int, float)) for row in rows)
    return bool(rows) and marked and named and isinstance(result["split"], str) and isinstance(result["model"], str)


def compare(results: Sequence[dict[str, Any]], against: str = "dive") -> dict[str, Any]:
    """For each method and budget that all files have: accuracy in each file, and the paired difference to `against`.

    Against a method without a budget (vanilla) every row is compared.
    """
    files = [{(row["method"], row["keep"]): bits(row["right"]) for row in result["rows"]} for result in results]
    settings = [setting for setting in files[0] if all(setting in file for file in files)]
    budgets = {keep for method, keep in settings if method == against}
    if not budgets:
        known = ", ".join(dict.fromkeys(method for method, _ in settings))
        raise ValueError(f"--against must be a method in all files ({known}), got {against!r}")
    rows = []
    for method, keep in settings:
        right = [file[method, keep] for file in files]
        row: dict[str, Any] = {"method": method, "keep": keep, "accuracy": [100 * fmean(marks) for marks in right]}
        other = (against, 0 if 0 in budgets else keep)
        if other in settings:
            row |= paired(right, [file[other] for file in files])
        rows.append(row)
    models = [result["model"] for result in results]
    return {"models": models, "split": results[0]["split"], "n": results[0]["n"], "against": against, "rows": rows}


def paired(right: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Differences between two methods, in points: of each file with the error of its questions, and their mean.

    right, others: marks by file, then by question. The mean's error is the larger of two: that of the questions, averaged over
    the files first, and that of the spread between the files.
    """
    points = [
        [100 * (mark - other) for mark, other in zip(*marks, strict=True)] for marks in zip(right, others, strict=True)
    ]
    differences = [fmean(of_file) for of_file in points]
    by_question = [fmean(of_question) for of_question in zip(*points, strict=True)]
    between = stdev(differences) / math.sqrt(len(points)) if len(points) > 1 else 0.0
    return {
        "difference": differences,
        "error": [_error(of_file) for of_file in points],
        "mean": fmean(differences),
        "mean_error": max(_error(by_question), between),
    }


def _error(values: Sequence[float]) -> float:
    return pstdev(values) / math.sqrt(len(values))


def as_table(result: dict[str, Any]) -> str:
    names = [Path(model).name for model in result["models"]]
    head = ["method", "keep", *names, *(f"{name}, minus {result['against']}" for name in names), "mean"]
    lines = []
    for row in result["rows"]:
        cells = [row["method"], str(row["keep"] or "-"), *(f"{value:.1f}" for value in row["accuracy"])]
        if "difference" in row and row["method"] != result["against"]:
            cells += [f"{d:+.1f}±{e:.1f}" for d, e in zip(row["difference"], row["error"], strict=True)]
            cells.append(f"{row['mean']:+.1f}±{row['mean_error']:.1f}")
        lines.append(cells + [""] * (len(head) - len(cells)))
    note = (
        f"{result['n']} questions of the {result['split']} split, percent right; differences are paired, ± standard error "
        "over the questions; the mean's is that or the one over the trainings, whichever is larger"
    )
    return f"{table(head, lines)}\n\n{note}"


def plot(result: dict[str, Any]) -> Any:
    """Accuracy over the budget, a panel for each training; vanilla as a level."""
    from matplotlib.figure import Figure

    names = [Path(model).name for model in result["models"]]
    figure = Figure(figsize=(1.5 + 3 * len(names), 4), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
        for method in dict.fromkeys(row["method"] for row in result["rows"] if row["keep"]):
            rows = sorted((row for row in result["rows"] if row["method"] == method), key=lambda row: row["keep"])
            keeps, right = [row["keep"] for row in rows], [row["accuracy"][number] for row in rows]
            axes.plot(keeps, right, marker="o", markersize=4, linewidth=1.2, label=method)
        for row in result["rows"]:
            if row["method"] == "vanilla":
                axes.axhline(row["accuracy"][number], color="gray", linestyle="--", linewidth=1, label="all tokens")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({row["keep"] for row in result["rows"] if row["keep"]}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("visual tokens kept")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"answers right, % of {result['n']} ({result['split']})")
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    return figure


def bits(marks: str) -> list[int]:
    return [int(mark) for mark in marks]
