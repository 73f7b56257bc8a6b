"""Tables and a picture of what `bench accuracy` measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from divevlm.bench.accuracy import OPTION, WITHOUT, value_of
from divevlm.bench.compare import bits, paired
from divevlm.terminal import table


def tables(result: dict[str, Any]) -> str:
    """One table of accuracies by task, one of what was kept and what it cost; what `proportional` adds, where it was tried."""
    rows = result["rows"]
    tasks = list(rows[0]["tasks"])
    head = ["method", "keep", *tasks, "all", "relative"]
    lines = [
        [
            row["method"],
            str(row["keep"] or "-"),
            *(_pm(of["accuracy"], of["error"], n=of["n"]) for of in map(row["tasks"].get, tasks)),
            _pm(row["accuracy"], row["error"], n=result["n"]),
            "" if row["relative"] is None else f"{row['relative']:.1f}",
        ]
        for row in rows
    ]
    lines.append(["majority", "-", *(f"{result['majority'][task]:.1f}" for task in tasks), "", ""])
    more = ["method", "keep", "minus full", "log-likelihood", "hit rate", "redundancy", "tokens", "GFLOP", "seconds"]
    others = [
        [
            row["method"],
            str(row["keep"] or "-"),
            _pm(row["below_full"], row["below_full_error"], n=result["n"]),
            _pm(row["likelihood"], row["likelihood_error"], 3, result["n"]),
            *(
                "" if row[key] is None else f"{row[key]:.{digits}f}"
                for key, digits in (("hit_rate", 1), ("redundancy", 3), ("tokens", 1), ("gflops", 2), ("seconds", 1))
            ),
        ]
        for row in rows
    ]
    note = (
        f"{asked(result)}; percent, +- standard error; "
        "relative: mean over tasks of the share of vanilla's accuracy; blind: no visual token; minus full: paired"
    )
    return "\n\n".join([table(head, lines), table(more, others), *with_and_without(rows), note])


def with_and_without(rows: list[dict[str, Any]]) -> list[str]:
    """What `proportional` adds to each method that was also asked without, in points, question by question; or nothing."""
    found: dict[tuple[str, Any], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["keep"]:
            plain = ":".join(part for part in row["method"].split(":") if not part.startswith(OPTION))
            found.setdefault((plain, row["keep"]), {})[value_of(row["method"])] = row
    both = {of: by for of, by in found.items() if WITHOUT in by and len(by) > 1}
    values = [*dict.fromkeys(value for by in both.values() for value in by if value != WITHOUT)]
    lines = []
    for (method, keep), by in both.items():
        cells = [method, str(keep), f"{by[WITHOUT]['accuracy']:.1f}"]
        for value in values:
            added = paired([bits(by[value]["right"])], [bits(by[WITHOUT]["right"])]) if value in by else None
            cells.append("" if added is None else f"{added['mean']:+.1f}±{added['mean_error']:.1f}")
        lines.append(cells)
    return [table(["proportional", "keep", "without", *values], lines)] if lines else []


def asked(result: dict[str, Any]) -> str:
    """Who was asked what."""
    about = "about clips " if result.get("clips") else ""
    return f"{Path(result['model']).name}, {result['n']} questions {about}of the {result['split']} split"


def _pm(value: float, error: float, digits: int = 1, n: int = 2) -> str:
    """Of a single question no error is known."""
    return f"{value:.{digits}f}±{error:.{digits}f}" if n > 1 else f"{value:.{digits}f}"


def plot(result: dict[str, Any]) -> Any:
    """Accuracy over the budget, one line a method; vanilla and blind as levels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    methods = dict.fromkeys(row["method"] for row in result["rows"] if row["keep"])
    for method in methods:
        rows = sorted((row for row in result["rows"] if row["method"] == method), key=lambda row: row["keep"])
        keeps, means, errors = ([row[key] for row in rows] for key in ("keep", "accuracy", "error"))
        axes.errorbar(keeps, means, errors, marker="o", markersize=4, capsize=2, linewidth=1.2, label=method)
    for row in result["rows"]:
        if not row["keep"]:
            axes.axhline(
                row["accuracy"], color="gray", linestyle="--" if row["method"] == "vanilla" else ":", linewidth=1
            )
            axes.annotate(
                row["method"], (0.01, row["accuracy"]), xycoords=("axes fraction", "data"), va="bottom", fontsize=8
            )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("visual tokens kept" if isinstance(next(iter(keeps)), int) else "share of the visual tokens kept")
    axes.set_ylabel("answers right, %")
    axes.set_title(asked(result), fontsize=10)
    axes.legend(fontsize=8)
    return figure
