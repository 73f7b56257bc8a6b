"""What the paper's mechanism does, measured: each analysis is a sweep with teacher forcing and a look at its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from divevlm.checks import require
from divevlm.core.metrics import relative_gold_likelihood
from divevlm.experiments import results
from divevlm.experiments.journal import Record
from divevlm.experiments.paper.recipe import recipe
from divevlm.experiments.runner import Result, Run, evaluate
from divevlm.experiments.settings import Setting

SCHEDULES: tuple[int, ...] = tuple(recipe("figure4").settings["schedules"])
VARIANTS = ("dive", "dive-no-language", "dive-no-visual", "dive-no-update", "farthest", "grid", "random")
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Analysis:
    """A sweep of these methods and budgets, and how its result reads."""

    about: str
    methods: tuple[str, ...]
    keeps: tuple[int | float, ...]
    read: Callable[[Run, list[dict[str, Any]], list[Record]], list[dict[str, Any]]]
    columns: tuple[tuple[str, str, int], ...]  # name of a figure in the rows, its head, digits

    def table(self, rows: list[dict[str, Any]]) -> Table:
        head = ["setting", *(head for _, head, _ in self.columns)]
        return head, [[row["setting"], *(_cell(row[name], digits) for name, _, digits in self.columns)] for row in rows]


def _cell(value: Any, digits: int) -> str:
    return "" if value is None else str(value) if digits < 0 else f"{value:.{digits}f}"


def _named(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"setting": str(Setting(row["method"], row["keep"])), **row} for row in rows]


def _plain(run: Run, rows: list[dict[str, Any]], records: list[Record]) -> list[dict[str, Any]]:
    return _named(rows)


def likelihoods(methods: Sequence[str], keep: int | float, records: list[Record]) -> tuple[list[str], torch.Tensor]:
    """Log-likelihood of the gold answer, [samples, methods], of samples that every method has; and the methods."""
    groups = results.by_setting(record for record in records if record["keep"] == keep)
    by_method = {m: {(r["task"], r["sample"]): r for r in groups.get(Setting(m, keep), [])} for m in methods}
    common = sorted(set.intersection(*(set(of) for of in by_method.values())))
    require(bool(common), "samples", 0, "at least one that every schedule has finished")
    return list(by_method), torch.tensor(
        [[of[question]["likelihood"] for of in by_method.values()] for question in common]
    )


def _feedback(run: Run, rows: list[dict[str, Any]], records: list[Record]) -> list[dict[str, Any]]:
    """RGL (Eq. 18): how each sample's likelihood stands to its geometric mean over the schedules."""
    with_gains = []
    for keep in run.keeps:
        methods, logs = likelihoods(run.methods, keep, records)
        gain = relative_gold_likelihood(logs)
        quarters = gain.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=gain.dtype), dim=0)
        error = gain.std(dim=0) / len(gain) ** 0.5 if len(gain) > 1 else None
        by_method = {row["method"]: row for row in rows if row["keep"] == keep}
        for i, method in enumerate(methods):
            low, middle, high = (float(quarters[q, i]) for q in range(3))
            spread = None if error is None else float(error[i])
            figures = {"rgl": float(gain[:, i].mean()), "rgl_error": spread, "low": low, "median": middle}
            with_gains.append({**_named([by_method[method]])[0], **figures, "high": high, "samples": len(gain)})
    return with_gains


ACCURACY = (("accuracy", "right, %", 1), ("error", "±", 1), ("relative", "relative", 2))
LIKELIHOOD = (("likelihood", "log-likelihood", 3),)
ANALYSES = {
    "feedback": Analysis(
        "gold-answer likelihood and answers by the number of feedback updates (figure 4a)",
        tuple(f"dive:updates={r}" for r in SCHEDULES),
        (64,),
        _feedback,
        (("rgl", "RGL, %", 2), ("rgl_error", "±", 2), ("median", "median", 2), *ACCURACY),
    ),
    "redundancy": Analysis(
        "mean largest cosine within the kept set, by updates and budget (figure 4b)",
        tuple(f"dive:updates={r}" for r in SCHEDULES),
        (64, 128, 192),
        _plain,
        (("redundancy", "redundancy", 4), *ACCURACY),
    ),
    "sensitivity": Analysis(
        "lambda, eta and h one at a time (table 7)",
        tuple(method for method in recipe("table7").methods.values() if method != "vanilla"),
        (64,),
        _plain,
        (*ACCURACY, *LIKELIHOOD, ("redundancy", "redundancy", 4)),
    ),
    "ablation": Analysis(
        "DIVE without its parts, and plain baselines (table 6)",
        VARIANTS,
        (64, 16),
        _plain,
        (*ACCURACY, *LIKELIHOOD, ("redundancy", "redundancy", 4)),
    ),
    "positions": Analysis(
        "kept tokens at their original positions, or renumbered",
        ("dive:positions=keep", "dive:positions=compact", "fastv:positions=keep", "fastv:positions=compact"),
        (64, 16),
        _plain,
        (*ACCURACY, *LIKELIHOOD),
    ),
    "placement": Analysis(
        "cutting at block 2, or choosing there and running all blocks on the kept tokens (as serving does)",
        ("dive:placement=layer", "dive:placement=entry", "fastv:placement=layer", "fastv:placement=entry"),
        (64, 16),
        _plain,
        (*ACCURACY, *LIKELIHOOD, ("kv", "KV, bytes", 0)),
    ),
}


def analyze(name: str, run: Run) -> Result:
    """Do the sweep (methods and budgets of the analysis unless the run says so) and write NAME.json, .md and .csv."""
    analysis = ANALYSES[name]
    run = replace(run, methods=run.methods or analysis.methods, keeps=run.keeps or analysis.keeps, mode="forced")
    swept = evaluate(run)
    rows = analysis.read(run, swept["rows"], swept.records)
    result = Result({**swept, "analysis": name, "about": analysis.about, "rows": rows}, swept.records, swept.loaded)
    head, lines = analysis.table(rows)
    results.save(run.out, name, result, head, lines, f"{run.model}: {analysis.about}")
    return result
