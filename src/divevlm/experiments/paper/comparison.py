"""A table of the paper beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from divevlm.experiments import results
from divevlm.experiments.paper.recipe import VANILLA, Budget, Recipe, benchmarks

THROUGHPUT = "Throughput"  # printed in tables 6 and 8 as a multiple of vanilla's


@dataclass(frozen=True)
class Comparison:
    """rows: one a setting, with scores and relative average; names, budgets: what was run -> as the paper prints it."""

    recipe: Recipe
    rows: list[dict[str, Any]]
    names: dict[str, str]
    budgets: dict[Budget, Budget]
    run: dict[str, Any]  # its results
    full: bool

    def relative(self, method: str, budget: Budget) -> float | None:
        for row in self.rows:
            if self.names.get(row["method"]) == method and self.budgets.get(row["keep"]) == budget:
                return row["relative"]  # type: ignore[no-any-return]
        return None

    def pairs(self) -> list[dict[str, Any]]:
        """Each measured row with the paper's."""
        pairs = []
        for row in self.rows:
            method, budget = self.names.get(row["method"]), self.budgets.get(row["keep"])
            if method is None or budget is None or (method != VANILLA and not budget):
                continue
            printed = self.recipe.row(method, budget)
            beside = {"scores": printed.scores, "average": printed.average, **printed.extra}
            pairs.append({"printed_as": method, "budget": budget, "printed": beside, **row})
        return sorted(pairs, key=lambda row: -(row["budget"] or float("inf")))

    def result(self) -> dict[str, Any]:
        return {**self.run, "rows": self.pairs(), "missing": reasons(self.rows)}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Full scale: each column printed and measured. Embedded: the averages side by side, then the embedded tasks."""
        pairs = self.pairs()
        tasks = list(pairs[0]["scores"]) if pairs else []
        head = ["method", "paper's budget", "kept here", "average printed", "measured", "±"]
        head += [text for task in tasks for text in ((f"{task} printed", task) if self.full else (task,))]
        speeds = THROUGHPUT in self.recipe.settings.get("extra", [])
        if speeds:
            of = self.run.get("throughput_of", "not measured")
            head += ["throughput printed, x vanilla", f"measured ({of}, nothing shared)", "samples/s"]
        lines = []
        for row in pairs:
            cells = [f"{row['budget']:g}" if row["budget"] else "all", f"{row['keep']:g}" if row["keep"] else "all"]
            cells += [
                f"{row['printed']['average']:.2f}",
                number(row["relative"], 2),
                number(row.get("relative_error"), 2),
            ]
            for task in tasks:
                if self.full:
                    cells.append(f"{row['printed']['scores'][task]:g}")
                cells.append(number(row["scores"][task], 1))
            if speeds:
                cells.append(f"{row['printed'][THROUGHPUT]:.2f}")
                cells += [number(row.get("throughput"), 2), number(row.get("samples_per_second"), 2)]
            lines.append([row["printed_as"], *cells])
        return head, lines


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def full_scores(result: dict[str, Any], of: Recipe) -> list[dict[str, Any]]:
    """lmms-eval's metrics as the paper's columns, one row a setting; None where one is missing, and under "missing" why."""
    known = benchmarks()
    other = of.settings.get("metrics", {})  # than the benchmark's usual ones
    rows: list[dict[str, Any]] = []
    full: dict[str, float] | None = None
    for entry in result.get("benchmarks", {}).values():
        scores: dict[str, float | None] = {}
        missing: dict[str, str] = {}
        for column in of.benchmarks:
            task, names = known[column]["task"], other.get(column, known[column]["metrics"])
            metrics = entry["tasks"].get(task, {})
            absent = [name for name in names if name not in metrics]
            scores[column] = None if absent else known[column]["factor"] * sum(metrics[name] for name in names)
            if absent:
                why = entry.get("missing", {}).get(task, "no sample that was asked has it")
                missing[column] = f"{task} gave no {' and no '.join(absent)} ({why})"
        whole = {column: score for column, score in scores.items() if score is not None}
        full = whole if entry["method"] == "vanilla" else full
        average = None if missing else results.relative(whole, full)
        rows.append({"method": entry["method"], "keep": entry["keep"], "scores": scores, "relative": average})
        rows[-1]["missing"] = missing
    return rows


def reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Why cells are empty, each reason once."""
    texts = (f"{column}: {why}" for row in rows for column, why in row.get("missing", {}).items())
    return list(dict.fromkeys(texts))
