"""Where the paper's printed numbers do not fit each other: more than rounding of what is printed can explain."""

from __future__ import annotations

from dataclasses import dataclass

from divevlm.experiments.paper.recipe import Recipe, Row, recipe

CLOSE = 1e-9


@dataclass(frozen=True)
class Misfit:
    """`computed` from the printed cells, give or take `slack` for what their rounding hides."""

    recipe: str
    budget: int | float
    method: str
    what: str
    printed: float
    computed: float
    slack: float

    def __str__(self) -> str:
        where = f"{self.recipe}, {self.method} at {self.budget}, {self.what}"
        return f"{where}: printed {self.printed:g}, the cells give {self.computed:.2f} (+- {self.slack:.2f})"


def _ratio_slack(score: float, full: float, step: float) -> float:
    """How far 100 score / full can be off if both were rounded to `step`."""
    return 100 * max(
        (score + step / 2) / (full - step / 2) - score / full, score / full - (score - step / 2) / (full + step / 2)
    )


def _misfit(
    of: Recipe, row: Row, what: str, printed: float, computed: float, slack: float, step: float
) -> Misfit | None:
    if abs(printed - computed) <= slack + step / 2 + CLOSE:
        return None
    return Misfit(of.name, row.budget, row.method, what, printed, computed, slack + step / 2)


def averages(of: Recipe) -> list[Misfit]:
    """Printed averages that the printed cells can't give."""
    steps, full = dict(zip(of.columns, of.settings["steps"], strict=True)), of.vanilla.scores
    checked = []
    for row in of.rows:
        assert row.average is not None
        slack = sum(_ratio_slack(row.scores[c], full[c], steps[c]) for c in full) / len(full)
        checked.append(_misfit(of, row, "average", row.average, of.average(row), slack, of.settings["average_step"]))
    return [one for one in checked if one is not None]


def cells(of: Recipe) -> list[Misfit]:
    """Printed percentages of a cell that its own raw score can't give."""
    steps, full = dict(zip(of.columns, of.settings["steps"], strict=True)), of.vanilla.scores
    checked = []
    for row in of.rows:
        for column, percent in row.relative.items():
            slack = _ratio_slack(row.scores[column], full[column], steps[column])
            computed = 100 * row.scores[column] / full[column]
            checked.append(_misfit(of, row, column, percent, computed, slack, 0.1))
    return [one for one in checked if one is not None]


def summary(of: Recipe) -> list[Misfit]:
    """Entries of the summary that differ from the averages of the tables they summarise by more than rounding."""
    checked = []
    for row in of.rows:
        for column, (name, budget) in zip(of.columns, of.settings["sources"], strict=True):
            source = recipe(name)
            average, step = source.row(row.method, budget).average, source.settings["average_step"]
            assert average is not None
            slack = step / 2 if step < of.settings["average_step"] else 0.0  # the table itself was rounded
            misfit = _misfit(of, row, column, row.scores[column], average, slack, of.settings["average_step"])
            checked.append(misfit)
    return [one for one in checked if one is not None]


def misfits(of: Recipe) -> list[Misfit]:
    """Everything in a recipe that does not fit."""
    if of.kind == "summary":
        return summary(of)
    return [*averages(of), *cells(of)] if of.kind == "scores" else []
