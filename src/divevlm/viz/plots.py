"""The paper's plots: performance over latency, likelihood over feedback, densities of redundancy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from divevlm.viz.canvas import BLUE, COLUMN, FONT, LINES, ORANGE, PAGE, RED, figure

Point = tuple[float, float, str]  # latency, score, what to write beside it


def performance_latency(
    panels: Mapping[str, Mapping[str, Sequence[Point]]], latency: str = "latency, s", score: str = "accuracy, %"
) -> Any:
    """One panel a benchmark, one line a method; points are (latency, score, label).

    The labels of a line's ends are written beside them; a single point is drawn as a star.
    """
    chart, axes = figure(1, len(panels), PAGE if len(panels) > 1 else COLUMN, 2.5)
    for axis, (name, methods) in zip(axes[0], panels.items(), strict=True):
        for i, (method, points) in enumerate(methods.items()):
            colour, marker, line = LINES[i % len(LINES)]
            points = sorted(points)
            x, y, _ = zip(*points, strict=True)
            single = len(points) == 1
            axis.plot(x, y, color="black" if single else colour, marker="*" if single else marker, linestyle=line,
                      markersize=9 if single else 4, linewidth=1.3, label=method)  # fmt: skip
            for at, value, label in dict.fromkeys((points[0], points[-1])):  # those between would hide one another
                axis.annotate(
                    label, (at, value), textcoords="offset points", xytext=(0, 4), ha="center", fontsize=FONT - 3,
                    color="black" if single else colour,
                )  # fmt: skip
        axis.set_title(name, fontsize=FONT)
        _plain(axis, latency)
    axes[0][0].set_ylabel(score, fontsize=FONT)
    handles, names = axes[0][0].get_legend_handles_labels()
    chart.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), fontsize=FONT - 1, frameon=False)
    return chart


def feedback_boxes(
    likelihood: Sequence[Sequence[float]], schedules: Sequence[int], scores: Sequence[float] | None = None,
    score: str = "accuracy, %",
) -> Any:  # fmt: skip
    """Relative likelihood of the gold answer (percent) for each number of updates; the red line is the task's score.

    likelihood: [samples][schedules], from `core.metrics.relative_gold_likelihood`
    """
    chart, axes = figure(1, 1, COLUMN, 2.6)
    axis = axes[0][0]
    columns = [[row[i] for row in likelihood] for i in range(len(schedules))]
    places = list(range(len(schedules)))
    for place, values in zip(places, columns, strict=True):
        spread = [place + 0.5 * ((7 * i) % 19 / 18 - 0.5) for i in range(len(values))]  # the same in every run
        axis.plot(spread, values, ".", color=BLUE, markersize=1.5, alpha=0.25, zorder=1)
    axis.boxplot(columns, positions=places, widths=0.55, showfliers=False, zorder=2,
                 medianprops={"color": ORANGE, "linewidth": 1.5}, boxprops={"linewidth": 0.9})  # fmt: skip
    ordered = sorted(value for values in columns for value in values)
    low, high = ordered[int(0.01 * (len(ordered) - 1))], ordered[int(0.99 * (len(ordered) - 1))]
    axis.set_ylim(
        low - 0.1 * (high - low) - 1, high + 0.1 * (high - low) + 1
    )  # a few far points don't flatten the boxes
    axis.axhline(0, color="gray", linewidth=0.6, linestyle=":")
    axis.set_xticks(places, [str(schedule) for schedule in schedules])
    _plain(axis, "feedback updates")
    axis.set_ylabel("gold likelihood, % of mean", fontsize=FONT)
    if scores is not None:
        right = axis.twinx()
        right.plot(places, list(scores), color=RED, marker="D", markersize=3.5, linewidth=1.3)
        right.set_ylabel(score, fontsize=FONT, color=RED)
        right.tick_params(labelsize=FONT - 1, colors=RED)
        right.spines[["top", "left"]].set_visible(False)
    return chart


def redundancy_densities(values: Mapping[int, Mapping[int | float, Sequence[float]]]) -> Any:
    """Densities of the mean maximum cosine, one ridge a schedule (number of updates), one colour and line a budget.

    values: {updates: {budget (a count or a share): one value a sample}}
    """
    import numpy as np

    every = np.concatenate([np.asarray(v, float) for budgets in values.values() for v in budgets.values()])
    low, high = float(every.min()), float(every.max())
    grid = np.linspace(low - 0.1 * (high - low) - 1e-3, high + 0.1 * (high - low) + 1e-3, 300)
    styles = {budget: _style(i) for i, budget in enumerate(sorted({k for budgets in values.values() for k in budgets}))}
    chart, axes = figure(1, 1, COLUMN, 0.42 * len(values) + 0.85 + 0.15 * -(-len(styles) // 4))
    axis = axes[0][0]
    labelled: set[int | float] = set()
    for place, budgets in enumerate(values.values()):
        for budget, sample in budgets.items():
            ridge = density(np.asarray(sample, float), grid)
            ridge = place + 0.9 * ridge / ridge.max()
            colour, line = styles[budget]
            label = f"{budget} tokens" if isinstance(budget, int) else f"{100 * budget:g} % of tokens"
            axis.fill_between(grid, place, ridge, color=colour, alpha=0.22, linewidth=0, zorder=-place)
            axis.plot(grid, ridge, color=colour, linestyle=line, linewidth=1.1, zorder=-place,
                      label=None if budget in labelled else label)  # fmt: skip
            labelled.add(budget)
    axis.set_yticks(range(len(values)), [str(updates) for updates in values])
    axis.set_ylabel("feedback updates", fontsize=FONT)
    _plain(axis, "mean maximum cosine (lower: less redundant)")
    chart.legend(loc="outside upper center", ncols=min(4, len(styles)), fontsize=FONT - 1, frameon=False)
    return chart


def _style(i: int) -> tuple[str, str]:
    """Colour and line of the i-th budget: a colour of its own, then the same colours with other lines."""
    lines = ("-", "--", "-.", ":")
    turn, place = divmod(i, len(LINES))
    return LINES[place][0], lines[(place + turn) % 4]


def density(values: Any, grid: Any) -> Any:
    """A Gaussian kernel estimate with Silverman's width. values: [n], grid: [m] -> [m]"""
    import numpy as np

    spread = max(float(values.std()), 1e-3 * float(grid[-1] - grid[0]))
    width = 1.06 * spread * len(values) ** -0.2
    return np.exp(-0.5 * ((grid[:, None] - values[None]) / width) ** 2).mean(axis=1) / (width * np.sqrt(2 * np.pi))


def _plain(axis: Any, label: str) -> None:
    axis.set_xlabel(label, fontsize=FONT)
    axis.tick_params(labelsize=FONT - 1)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", linewidth=0.4, alpha=0.4)
