"""`divevlm analyze`: one analysis from the command line's options to its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from divevlm.budget import Budget
from divevlm.checks import keeps, names, require
from divevlm.experiments import results
from divevlm.experiments.analysis import figures
from divevlm.experiments.analysis.analyses import ANALYSES, SCHEDULES, Table, analyze
from divevlm.experiments.analysis.timing import ENERGY, RUNTIME, energy, runtime
from divevlm.experiments.answering import Answerer
from divevlm.experiments.loading import machine
from divevlm.experiments.runner import Run, bar, usual_inputs
from divevlm.experiments.tasks import is_embedded

DRAWN = ("feedback", "redundancy")  # as a picture, too


def analysis(name: str, out: Path, options: Any) -> tuple[dict[str, Any], Table]:
    """options: model, method, keep, tasks, limit, split, seed, batch and new_tokens"""
    wanted, budgets = names("--tasks", options.tasks), keeps(options.keep) if options.keep else ()
    _check(name, budgets, options)
    run = Run(
        options.model,
        names("--method", options.method) if options.method else (),
        budgets,
        out,
        wanted,
        options.limit,
        options.seed,
        options.batch,
        options.split,
        mode="forced",
        include=options.include,
        inputs=usual_inputs(options.model) if any(not is_embedded(task) for task in wanted) else "chat",
    )
    if name in ("runtime", "energy"):
        return _measured(name, run, options.new_tokens or 32, budgets[0] if budgets else 64)
    result = analyze(name, run)
    if name in DRAWN and not options.method:
        whole = replace(run, methods=ANALYSES[name].methods, keeps=budgets or ANALYSES[name].keeps)
        if name == "redundancy":
            result["files"] = figures.redundancy(whole, result.records, out)
        else:
            result["files"] = figures.feedback(whole, result["rows"], result.records, out)
    return result, ANALYSES[name].table(result["rows"])


def _check(name: str, budgets: Sequence[int | float], options: Any) -> None:
    """What can be told before anything is computed."""
    for keep in budgets:
        Budget(keep)
    require(options.batch >= 1, "batch-size", options.batch, "at least 1")
    if name in ("runtime", "energy"):
        require(len(budgets) <= 1, "keep", options.keep, f"one budget for {name}")
        require(not options.method, "method", options.method, f"left out for {name}, which is about DIVE alone")
    tokens = options.new_tokens
    require(tokens is None or name == "runtime", "new-tokens", tokens, f"left out for {name}, which generates nothing")
    require(tokens is None or tokens >= 1, "new-tokens", tokens, "at least 1")
    single = any(isinstance(keep, int) and keep == 1 for keep in budgets)
    require(not single or name != "redundancy", "keep", options.keep, "at least 2 for redundancy, or shares")
    if name in DRAWN and not options.method:
        figures.check()


def _measured(name: str, run: Run, new_tokens: int, keep: int | float) -> tuple[dict[str, Any], Table]:
    """Those that are not sweeps."""
    some = replace(run, limit={"runtime": 5, "energy": 16}[name] if run.limit is None else run.limit).items()
    answerer = Answerer(*run.load(), shared=False)
    if name == "runtime":
        with bar((1 + len(some)) * len(SCHEDULES)) as tick:
            rows = runtime(answerer, some, SCHEDULES, keep, new_tokens, tick)
        columns: tuple[tuple[str, str, int], ...] = RUNTIME
        about = f"cost of feedback, {Budget(keep)} kept, {new_tokens} generated, means of {len(some)} runs (figure 4c)"
    else:
        rows = energy(answerer, some, keep, run.batch)
        columns = ENERGY
        about = f"energy that is left, {Budget(keep)} picked"
    head = ["setting", *(head for _, head, _ in columns)]
    lines = [[row["setting"], *(f"{row[key]:.{digits}f}" for key, _, digits in columns)] for row in rows]
    result = {"analysis": name, "about": about, "model": run.model, "machine": machine(), "rows": rows}
    results.save(run.out, name, result, head, lines, f"{run.model}: {about}")
    return result, (head, lines)
