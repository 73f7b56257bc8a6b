"""Recipes: one file a table or figure of the paper, with what to run and the numbers that the paper prints."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from divevlm.checks import hint, require
from divevlm.core.metrics import relative_average
from divevlm.methods import METHODS, parse

RECIPES = Path(__file__).parent / "recipes"
BENCHMARKS = Path(__file__).parent / "benchmarks.toml"
VANILLA = "Vanilla"
Budget = int | float  # a count, a share, or 0: all tokens


@dataclass(frozen=True)
class Row:
    """One printed line: scores by column, the average as printed, and percentages of vanilla where the paper has them."""

    budget: Budget
    method: str
    scores: dict[str, float]
    average: float | None = None
    extra: dict[str, float] = field(default_factory=dict)
    relative: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """methods: the printed name -> what to run; settings: everything else that the file says."""

    name: str
    title: str
    kind: str
    rows: list[Row]
    methods: dict[str, str]
    settings: dict[str, Any]

    @property
    def columns(self) -> list[str]:
        return list(self.settings["columns"])

    @property
    def benchmarks(self) -> list[str]:
        """What is run at full scale: the columns, or what the file names instead."""
        return list(self.settings.get("tasks", self.columns))

    @property
    def budgets(self) -> list[Budget]:
        """Those of the rows, in their order, or of the sweep that a figure shows."""
        budgets = list(dict.fromkeys(row.budget for row in self.rows if row.budget))
        return budgets or list(self.settings.get("budgets", []))

    def row(self, method: str, budget: Budget) -> Row:
        rows = [row for row in self.rows if row.method == method and row.budget == budget]
        require(len(rows) == 1, "method and budget", (method, budget), f"a row of {self.name}")
        return rows[0]

    @property
    def vanilla(self) -> Row:
        return self.row(VANILLA, 0)

    def average(self, row: Row) -> float:
        """The paper's relative average (Eq. 16), recomputed from the printed cells."""
        return relative_average(row.scores, self.vanilla.scores)

    def scaled(self, budget: Budget) -> Budget:
        """What a budget of the paper is on the embedded model: as the recipe says, or the same."""
        keep: dict[str, Budget] = self.settings["embedded"].get("keep", {})
        return keep.get(str(budget), budget)

    def run_as(self, method: str, full: bool) -> str:
        """What to run for a printed name; some methods count otherwise in the paper's own tables.

        The embedded model knows one length of the sequence only, so there all methods keep the original positions: methods
        whose authors renumber them would lose by that alone.
        """
        if full:
            return str(self.settings.get("full", {}).get(method, self.methods[method]))
        plain = self.methods[method]
        renumbers = method != VANILLA and METHODS.get(parse(plain)[0])(keep=1).default_positions == "compact"
        return f"{plain}:positions=keep" if renumbers else plain


def _order(name: str) -> tuple[str, int]:
    kind, number = re.fullmatch(r"([a-z]+)(\d+)", name).groups()  # type: ignore[union-attr]
    return {"table": "a", "figure": "b"}[kind], int(number)


def names() -> list[str]:
    """Tables first, by their numbers in the paper."""
    return sorted((path.stem for path in RECIPES.glob("*.toml")), key=_order)


def recipe(name: str) -> Recipe:
    if name not in names():
        raise ValueError(f"recipe must be one of {', '.join(names())}, got {name!r}{hint(name, names())}")
    settings = tomllib.loads((RECIPES / f"{name}.toml").read_text())
    rows, relative = settings.pop("rows"), settings.pop("relative", [])
    shape = settings.get("kind") == "scores"
    columns, extra = settings.get("columns", []), settings.get("extra", [])
    printed: list[Row] = []
    for number, line in enumerate(rows):
        budget, method, *cells = [0, *line] if settings["kind"] == "summary" else line
        average = cells[len(columns)] if shape else None
        beyond = dict(zip(extra, cells[len(columns) + 1 :], strict=True)) if extra else {}
        second = dict(zip(columns, relative[number][2:], strict=True)) if relative else {}
        printed.append(Row(budget, method, dict(zip(columns, cells, strict=False)), average, beyond, second))
    return Recipe(name, settings["title"], settings["kind"], printed, settings.pop("methods", {}), settings)


def benchmarks() -> dict[str, dict[str, Any]]:
    """Of each column: the lmms-eval task, its metrics and the factor to the paper's scale."""
    return tomllib.loads(BENCHMARKS.read_text())
