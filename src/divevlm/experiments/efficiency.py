"""Table 5 and figure 3: what pruning saves on this machine, nothing shared between methods."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from divevlm.experiments import figures, tasks
from divevlm.experiments.analyses import records
from divevlm.experiments.measured import full_scores
from divevlm.experiments.recipe import VANILLA, Recipe, benchmarks
from divevlm.experiments.runner import Run, evaluate

if TYPE_CHECKING:
    from divevlm.experiments.analyses import Table
    from divevlm.experiments.reproduce import Order


def _alone(of: Recipe, order: Order, keeps: tuple[int | float, ...]) -> tuple[Run, dict[str, str]]:
    """A run whose times compare: every method computes everything itself."""
    names = {of.run_as(method, order.full): method for method in of.methods if method != VANILLA}
    return order.run(of, tuple(names), keeps, shared=False), names | {"vanilla": VANILLA}


def _timed(of: Recipe, order: Order, run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One row a setting with scores, and seconds by task: from our records, at either scale."""
    found = evaluate(run)
    some = records(run)
    rows = full_scores(found, of) if order.full else found["rows"]
    for row in rows:
        mine = [r for r in some if (r["method"], r["keep"]) == (row["method"], row["keep"])]
        seconds: dict[str, float] = defaultdict(float)
        for record in mine:
            seconds[record["task"]] += record["seconds"]
        row |= {
            "task_seconds": dict(seconds),
            "seconds": sum(seconds.values()),
            "prefill": sum(r["prefill"] for r in mine),
        }
        for name in ("kept", "kv", "kv_full"):
            known = [r[name] for r in mine if r[name] is not None]
            row[name] = sum(known) / len(known) if known else None
        row["f1"] = tasks.f1([r["prediction"] for r in mine], [r.get("gold", "") for r in mine])
    return found, rows


def efficiency(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    """Totals over the questions, one at a time (batch 1, as the paper has it)."""
    keep = of.budgets[0] if order.full else of.scaled(of.budgets[0])
    run, names = _alone(of, replace(order, batch=1), (keep,))
    found, measured = _timed(of, order, run)
    if not measured:  # lmms-eval tells its results to the first process only
        return found, ([], [])
    vanilla, cache = measured[0], max(row["kv_full"] or 0 for row in measured)
    head = [
        "method",
        "tokens",
        "total, s",
        "prefill, s",
        "KV, MB",
        "yes F1",
        "speed-up",
        "printed",
        "in prefill",
        "printed",
    ]
    lines, rows = [], []
    for row in measured:
        printed = of.row(names[row["method"]], of.budgets[0] if row["keep"] else 0).scores
        made = {
            "printed_as": names[row["method"]],
            "tokens": row["kept"] or of.settings["tokens"],
            "total": row["seconds"],
            "prefill_total": row["prefill"],
            "kv_mb": (row["kv"] or cache) / 2**20,
            "f1": row["scores"]["POPE"] if order.full else row["f1"],
            "speedup": vanilla["seconds"] / row["seconds"],
            "prefill_speedup": vanilla["prefill"] / row["prefill"],
            "printed": printed,
        }
        rows.append({**row, **made})
        digits = (("total", 1), ("prefill_total", 1), ("kv_mb", 3), ("f1", 1))
        cells = [f"{made['tokens']:.0f}", *(f"{made[name]:.{n}f}" for name, n in digits)]
        cells += [f"{made['speedup']:.2f}", f"{printed['Speed-up, total']:.2f}"]
        lines.append(
            [made["printed_as"], *cells, f"{made['prefill_speedup']:.2f}", f"{printed['Speed-up, prefill']:.2f}"]
        )
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {**found, "rows": rows, "peak_gpu_memory_gb": peak}, (head, lines)


def curves(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    """Score and wall-clock time of each task, method and budget."""
    run, names = _alone(of, order, tuple(of.budgets))
    found, rows = _timed(of, order, run)
    if not rows:
        return found, ([], [])
    shown = list(rows[0]["scores"])
    times = {column: benchmarks()[column]["task"] if order.full else column for column in shown}
    for row in rows:
        row["column_seconds"] = {column: row["task_seconds"][task] for column, task in times.items()}
    files = figures.curves(rows, names, order.out, of.name)
    head = ["method", "kept", *(text for column in shown for text in (column, "s"))]
    lines = []
    for row in rows:
        cells = [text for c in shown for text in (f"{row['scores'][c]:.1f}", f"{row['column_seconds'][c]:.1f}")]
        lines.append([names[row["method"]], f"{row['keep']:g}" if row["keep"] else "all", *cells])
    return {**found, "rows": rows, "files": files}, (head, lines)
