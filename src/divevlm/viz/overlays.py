"""Pictures of a selection on the image: kept tokens, scores, the steps of a choice, several methods side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from divevlm.engine.report import SampleReport
from divevlm.viz.asking import Comparison, MethodAnswer
from divevlm.viz.canvas import BLUE, FONT, ORANGE, PAGE, bar, cells, darken, figure, heat, show
from divevlm.viz.places import Panel

FRAMES = 8  # panels in a row of a picture, at most


def kept(comparison: Comparison, answer: MethodAnswer | None = None) -> Any:
    """What one method keeps, on every view or frame. Default: the first answer that was pruned."""
    chosen = answer or next(answer for answer in comparison.answers if answer.report is not None)
    return _rows(comparison, [chosen])


def masks(comparison: Comparison) -> Any:
    """What each method keeps, side by side: columns for one view, else a row a method and a column a view or frame."""
    return _rows(comparison, [answer for answer in comparison.answers if answer.report is not None])


def _rows(comparison: Comparison, answers: Sequence[MethodAnswer]) -> Any:
    drawn = _spread(comparison.panels)
    if len(drawn) == 1:
        chart, axes = _grid_of(1, 1 + len(answers), drawn)
        show(axes[0][0], drawn[0], "image")
        places = [
            (axes[0][1 + i], answer, drawn[0], f"{answer.label}\n{_short(answer.text)}")
            for i, answer in enumerate(answers)
        ]
    else:
        chart, axes = _grid_of(len(answers), len(drawn), drawn)
        places = []
        for i, answer in enumerate(answers):
            for j, panel in enumerate(drawn):
                places.append((axes[i][j], answer, panel, panel.label if i == 0 else ""))
            axes[i][0].set_ylabel(answer.label, fontsize=FONT)
    for axis, answer, panel, title in places:
        show(axis, panel, title)
        darken(axis, panel, set(_sample(answer).kept))
    chart.suptitle(_short(comparison.question, 90), fontsize=FONT + 1)
    return chart


def heat_map(panels: Sequence[Panel], values: Mapping[int, float], label: str = "score") -> Any:
    """Any score of the visual tokens (index within the sample -> value) on the pictures they come from."""
    drawn = _spread(panels)
    chart, axes = _grid_of(1, len(drawn), drawn)
    top = max(values.values(), default=0.0)
    for axis, panel in zip(axes[0], drawn, strict=True):
        show(axis, panel, panel.label if len(drawn) > 1 else "")
        heat(axis, panel, values, top)
    bar(chart, list(axes[0]), top, label)
    return chart


def evolution(comparison: Comparison, answer: MethodAnswer, steps: Sequence[int] = (1, 2, 4, 8, 16)) -> Any:
    """The fused score before each of these picks (1, 2, ...), with all picks so far in numbered boxes."""
    traces = _traces(answer)
    last = max(trace.scores.shape[0] for trace, _, _ in traces)
    steps = [step for step in steps if step <= last]
    drawn = _spread(comparison.panels, 4)
    chart, axes = _grid_of(len(drawn), len(steps), drawn * len(steps))
    for column, step in enumerate(steps):
        values: dict[int, float] = {}
        picked: dict[int, int] = {}
        for trace, tokens, order in traces:
            row = min(step, len(trace.scores)) - 1
            values |= dict(zip(tokens, trace.scores[row].clamp_min(0).tolist(), strict=True))
            picked |= {token: number for number, token in enumerate(order[:step], 1)}
        top = max(values.values())
        for row, panel in enumerate(drawn):
            show(axes[row][column], panel, f"step {step}" if row == 0 else "")
            heat(axes[row][column], panel, values, top)
            numbered(axes[row][column], panel, picked, step)
    chart.suptitle(_short(comparison.question, 90), fontsize=FONT + 1)
    return chart


def numbered(axes: Any, panel: Panel, picked: Mapping[int, int], newest: int) -> None:
    """Boxes with the number of the pick; the newest in orange."""
    from matplotlib.patheffects import withStroke

    places = panel.cells()
    for token, number in picked.items():
        if token not in places:
            continue
        left, top, width, height = places[token]
        colour = ORANGE if number == newest else "white"
        cells(axes, [places[token]], facecolors="none", edgecolors="black", linewidths=2.0)
        cells(axes, [places[token]], facecolors="none", edgecolors=colour, linewidths=1.0)
        beyond = left + 3 * width > 1  # no room on the right
        place, side = (left - width * 0.15, "right") if beyond else (left + width * 1.15, "left")
        text = axes.text(place, top + height / 2, str(number), fontsize=5.5, color=colour, va="center", ha=side)
        text.set_path_effects([withStroke(linewidth=1.4, foreground="black")])


def gallery(rows: Sequence[tuple[Comparison, MethodAnswer, MethodAnswer]], number: int = 0) -> Any:
    """One row a question: picture, initial score, selection by frozen scores (dive-no-update), DIVE's, and their difference.

    rows: (comparison, answer by frozen scores, answer by DIVE), both of them traced
    """
    titles = ("image", "initial score", "frozen scores", "DIVE", "difference")
    drawn = [comparison.panels[number] for comparison, _, _ in rows]
    high = sum(PAGE / 5 * panel.picture.height / panel.picture.width + 0.35 for panel in drawn) + 0.2
    chart, axes = figure(len(rows), 5, PAGE, high)
    for i, ((comparison, frozen, dive), panel) in enumerate(zip(rows, drawn, strict=True)):
        for j, axis in enumerate(axes[i]):
            show(axis, panel, titles[j] if i == 0 else "")
        trace, tokens, _ = _traces(frozen)[0]
        values = dict(zip(tokens, trace.scores[0].tolist(), strict=True))
        heat(axes[i][1], panel, values, max(values.values()))
        first, second = (set(_sample(answer).order) for answer in (frozen, dive))
        darken(axes[i][2], panel, first)
        darken(axes[i][3], panel, second)
        difference(axes[i][4], panel, first, second)
        for j, text in ((0, comparison.question), (2, frozen.text), (3, dive.text)):
            axes[i][j].set_xlabel("\n".join(wrap(_short(text, 56), 28)), fontsize=FONT - 1.5)
    chart.supxlabel("difference: blue frozen scores only, orange DIVE only, white both", fontsize=FONT - 1)
    return chart


def difference(axes: Any, panel: Panel, first: set[int], second: set[int]) -> None:
    """Blue: in the first only; orange: in the second only; white: in both. The rest is dark."""
    places = panel.cells()
    groups = (
        (set(places) - first - second, (0.08, 0.08, 0.1, 0.72)),
        (first - second, BLUE),
        (second - first, ORANGE),
        (first & second, "white"),
    )
    for tokens, colour in groups:
        cells(axes, (places[token] for token in tokens if token in places), facecolors=colour)


def _sample(answer: MethodAnswer) -> SampleReport:
    if answer.report is None:
        raise ValueError(f"answer must be of a method that prunes, got {answer.label!r}")
    return answer.report.samples[0]


def _traces(answer: MethodAnswer) -> list[tuple[Any, list[int], list[int]]]:
    """Trace, candidates and picks of each group of competing tokens."""
    sample = _sample(answer)
    if answer.method is None or all(segment.trace is None for segment in sample.segments):
        raise ValueError(f"answer must be of DIVE with trace=True, got {answer.label!r} without a trace")
    return [
        (segment.trace, segment.candidates, segment.order) for segment in sample.segments if segment.trace is not None
    ]


def _spread(panels: Sequence[Panel], most: int = FRAMES) -> list[Panel]:
    """All panels, or as many as fit, evenly spaced."""
    if len(panels) <= most:
        return list(panels)
    return [panels[int((i + 0.5) * len(panels) / most)] for i in range(most)]


def _grid_of(rows: int, columns: int, drawn: Sequence[Panel]) -> tuple[Any, Any]:
    shape = max(panel.picture.height / panel.picture.width for panel in drawn)
    width = min(PAGE, 1.9 * columns + 0.4)
    return figure(rows, columns, width, rows * (width / columns * shape + 0.1) + 0.6)


def _short(text: str, most: int = 28) -> str:
    line = "".join(sign if sign.isprintable() else "\ufffd" for sign in " ".join(text.split()))
    line = line.replace("$", r"\$")  # a dollar sign would begin a formula
    return line if len(line) <= most else line[: most - 1] + "…"
