"""Methods against one of them, question by question, over several trainings of the embedded model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from divevlm.cli.output import table


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Files of `bench accuracy`; all must answer the same questions."""
    results = []
    for path in paths:
        try:
            result = json.loads(path.read_text())
            good = all(len(row["right"]) == result["n"] for row in result["rows"]) and isinstance(result["split"], str)
        except (ValueError, KeyError, TypeError):  # no JSON, or another one
            good = False
        if not good:
            raise ValueError(f"FILE must be written by `divevlm bench accuracy --out`, got {str(path)!r}")
        results.append(result)
        asked, first = ((one["split"], one["n"]) for one in (result, results[0]))
        if asked != first:
            given = f"{asked[1]} of {asked[0]} in {str(path)!r}, {first[1]} of {first[0]} in {str(paths[0])!r}"
            raise ValueError(f"FILE must hold the same questions as the others, got {given}")
    return results


def compare(results: Sequence[dict[str, Any]], against: str = "dive") -> dict[str, Any]:
    """For each method and budget that all files have: accuracy in each file, and the paired difference to `against`.

    The error in a file is that of its questions; that of the mean is the spread between files alone (None for a single one).
    """
    found = [{(row["method"], row["keep"]): row["right"] for row in result["rows"]} for result in results]
    keys = [key for key in found[0] if all(key in one for one in found)]
    keeps = {keep for method, keep in keys if method == against}
    if not keeps:
        known = ", ".join(dict.fromkeys(method for method, keep in keys if keep))
        raise ValueError(f"--against must be a method in all files ({known}), got {against!r}")
    rows = []
    for method, keep in keys:
        marks = [one[method, keep] for one in found]
        row: dict[str, Any] = {"method": method, "keep": keep, "accuracy": [100 * _mean(_bits(one)) for one in marks]}
        if keep in keeps:
            others = [one[against, keep] for one in found]
            pairs = [
                [a - b for a, b in zip(_bits(one), _bits(other), strict=True)]
                for one, other in zip(marks, others, strict=True)
            ]
            row["difference"] = [100 * _mean(pair) for pair in pairs]
            row["error"] = [100 * _error(pair, len(pair)) for pair in pairs]
            row["mean"] = _mean(row["difference"])
            row["mean_error"] = _error(row["difference"], len(pairs) - 1) if len(pairs) > 1 else None
        rows.append(row)
    models = [result["model"] for result in results]
    return {"models": models, "split": results[0]["split"], "n": results[0]["n"], "against": against, "rows": rows}


def as_table(result: dict[str, Any]) -> str:
    names = [Path(model).name for model in result["models"]]
    head = ["method", "keep", *names, *(f"{name} - {result['against']}" for name in names), "mean"]
    lines = []
    for row in result["rows"]:
        cells = [row["method"], str(row["keep"] or "-"), *(f"{value:.1f}" for value in row["accuracy"])]
        if "difference" in row and row["method"] != result["against"]:
            cells += [f"{d:+.1f}±{e:.1f}" for d, e in zip(row["difference"], row["error"], strict=True)]
            cells.append(f"{row['mean']:+.1f}" + ("" if row["mean_error"] is None else f"±{row['mean_error']:.1f}"))
        lines.append(cells + [""] * (len(head) - len(cells)))
    note = (
        f"{result['n']} questions of the {result['split']} split, percent right; differences are paired, +- standard error "
        "over the questions; the mean's is over the trainings alone"
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
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("visual tokens kept")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"answers right, % of {result['n']} ({result['split']})")
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    return figure


def _bits(marks: str) -> list[int]:
    return [int(mark) for mark in marks]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _error(values: Sequence[float], freedom: int) -> float:
    """The standard error of their mean."""
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / freedom / len(values))
