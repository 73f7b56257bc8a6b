"""`divevlm analyze`: one analysis from the command line's options to its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from divevlm.experiments import results
from divevlm.experiments.analyses import ANALYSES, SCHEDULES, Table, analyze
from divevlm.experiments.answering import Answerer
from divevlm.experiments.loading import load, machine
from divevlm.experiments.runner import Run, bar, keeps, names
from divevlm.experiments.timing import ENERGY, RUNTIME, energy, runtime


def analysis(name: str, out: Path, options: Any) -> tuple[dict[str, Any], Table]:
    """options: model, method, keep, tasks, limit, split, seed, batch and new_tokens"""
    wanted, budgets = names(options.tasks), keeps(options.keep) if options.keep else ()
    run = Run(
        options.model,
        names(options.method),
        budgets,
        out,
        wanted,
        options.limit,
        options.seed,
        options.batch,
        options.split,
        mode="forced",
        include=options.include,
    )
    if name in ("runtime", "energy"):
        return _measured(name, run, options.new_tokens, int(budgets[0]) if budgets else 64)
    result = analyze(name, run)
    if name in ("feedback", "redundancy") and not options.method:
        from divevlm.experiments import figures

        whole = replace(run, methods=ANALYSES[name].methods, keeps=budgets or ANALYSES[name].keeps)
        draw = figures.redundancy(whole, out) if name == "redundancy" else figures.feedback(whole, result["rows"], out)
        result["files"] = draw
    return result, ANALYSES[name].table(result["rows"])


def _measured(name: str, run: Run, new_tokens: int, keep: int) -> tuple[dict[str, Any], Table]:
    """Those that are not sweeps."""
    some = replace(run, limit=run.limit or {"runtime": 5, "energy": 16}[name]).items()
    answerer = Answerer(*load(run.model), shared=False)
    if name == "runtime":
        with bar(len(some) * len(SCHEDULES)) as tick:
            rows = runtime(answerer, some, SCHEDULES, keep, new_tokens, tick)
        columns: tuple[tuple[str, str, int], ...] = RUNTIME
        about = f"cost of feedback, {keep} tokens kept, {new_tokens} generated (figure 4c)"
    else:
        rows = energy(answerer, some, keep, run.batch)
        columns = ENERGY
        about = f"energy that is left, {keep} picks"
    head = ["setting", *(head for _, head, _ in columns)]
    lines = [[row["setting"], *(f"{row[key]:.{digits}f}" for key, _, digits in columns)] for row in rows]
    result = {"analysis": name, "about": about, "model": run.model, "machine": machine(), "rows": rows}
    results.save(run.out, name, result, head, lines, f"{run.model}: {about}")
    return result, (head, lines)
