"""Table 5 and figure 3: what pruning saves on this machine, nothing shared between methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from divevlm.experiments import results, tasks
from divevlm.experiments.analysis import figures
from divevlm.experiments.answering import Answerer
from divevlm.experiments.paper.comparison import full_scores, number, reasons
from divevlm.experiments.paper.recipe import VANILLA, Recipe, benchmarks
from divevlm.experiments.runner import Result, Run, evaluate
from divevlm.experiments.settings import Setting
from divevlm.loading import Loaded
from divevlm.methods import Method

if TYPE_CHECKING:
    from divevlm.experiments.analysis.analyses import Table
    from divevlm.experiments.paper.reproduce import Order


def _alone(of: Recipe, order: Order, keeps: tuple[int | float, ...]) -> tuple[Run, dict[str, str]]:
    """A run whose times compare: every method computes everything itself."""
    names = {of.run_as(method, order.full): method for method in of.methods if method != VANILLA}
    return order.run(of, tuple(names), keeps, shared=False), names | {"vanilla": VANILLA}


def _timed(of: Recipe, order: Order, run: Run) -> tuple[Result, list[dict[str, Any]]]:
    """One row a setting with scores, and seconds by task: from our records, at either scale."""
    found = evaluate(run)
    some = found.records
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


COLUMNS = (  # in the rows, its head, the paper's column, digits
    ("total", "total, s", "Total", 1),
    ("prefill_total", "prefill, s", "Prefill", 1),
    ("peak_gb", "GPU memory, GB", "GPU memory", 2),
    ("kv_mb", "KV, MB", "KV cache", 3),
    ("f1", "yes F1", "POPE", 1),
    ("speedup", "speed-up", "Speed-up, total", 2),
    ("prefill_speedup", "speed-up of prefill", "Speed-up, prefill", 2),
)


def efficiency(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    """Totals over the questions, one at a time (batch 1, as the paper has it)."""
    keep = of.budgets[0] if order.full else of.scaled(of.budgets[0])
    run, names = _alone(of, replace(order, batch=1), (keep,))
    found, measured = _timed(of, order, run)
    memory = peaks(run, found.loaded)
    if not measured:  # lmms-eval tells its results to the first process only
        return found, ([], [])
    vanilla, cache = measured[0], max(row["kv_full"] or 0 for row in measured)
    head = ["method", "tokens", *(text for _, name, _, _ in COLUMNS for text in (f"{name} printed", name))]
    lines, rows = [], []
    for row in measured:
        printed = of.row(names[row["method"]], of.budgets[0] if row["keep"] else 0).scores
        made = {
            "printed_as": names[row["method"]],
            "tokens": row["kept"] or of.settings["tokens"],
            "total": row["seconds"],
            "prefill_total": row["prefill"],
            "peak_gb": memory.get(Setting(row["method"], row["keep"])),
            "kv_mb": (row["kv"] or cache) / 2**20,
            "f1": row["scores"]["POPE"] if order.full else row["f1"],
            "speedup": vanilla["seconds"] / row["seconds"],
            "prefill_speedup": vanilla["prefill"] / row["prefill"],
            "printed": printed,
        }
        rows.append({**row, **made})
        cells = [made["printed_as"], f"{made['tokens']:.0f}"]
        for name, _, column, digits in COLUMNS:
            cells += ["" if column not in printed else f"{printed[column]:g}", number(made[name], digits)]
        lines.append(cells)
    return {**found, "rows": rows, "missing": reasons(measured)}, (head, lines)


def peaks(run: Run, loaded: Loaded | None = None) -> dict[Setting, float | None]:
    """Peak GPU memory of each setting on the first questions, one at a time; nothing is known on a CPU."""
    if not torch.cuda.is_available():
        return {}
    some = replace(run, mode="forced", limit=_few(run)).items()
    answerer = Answerer(*(loaded or run.load()), shared=False)
    found = {}
    for setting in run.settings:
        ask = partial(_ask, answerer, some, setting.ready(answerer.model, answerer.processor), run.new_tokens)
        found[setting] = peak_memory(answerer.model.device, ask)
    return found


def _ask(answerer: Answerer, some: Sequence[tasks.Item], method: Method | None, new_tokens: int) -> None:
    for item in some:
        answerer.generate([item], method, new_tokens)


def peak_memory(device: torch.device, work: Callable[[], object]) -> float | None:
    """GB (2**30 bytes) in use at most while it works, weights included; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) / 2**30


def _few(run: Run) -> int:
    """Questions of each task that are enough to compare costs."""
    return 4 if run.limit is None else min(4, run.limit)


def throughput(run: Run, found: Result, name: str) -> tuple[dict[Setting, float], str]:
    """Samples a second of each setting where nothing is shared, and of which samples: the run's own where lmms-eval asks;
    our sweep shares blocks, so that its first questions run once more, in a folder beside."""
    if run.asked:
        run = replace(run, shared=False, limit=_few(run), out=run.out / f"{name}-unshared")
        found = evaluate(run, found.loaded)
    by = results.by_setting(record for record in found.records if record["seconds"])
    speeds = {s: len(by[s]) / sum(r["seconds"] for r in by[s]) for s in run.settings if s in by}
    count = len(by.get(run.settings[0], []))
    return speeds, f"first {count} questions" if run.asked else f"{count} samples"


def curves(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    """Score and wall-clock time of each task, method and budget."""
    figures.check()
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
        cells = [text for c in shown for text in (number(row["scores"][c], 1), f"{row['column_seconds'][c]:.1f}")]
        lines.append([names[row["method"]], f"{row['keep']:g}" if row["keep"] else "all", *cells])
    return {**found, "rows": rows, "files": files, "missing": reasons(rows)}, (head, lines)
