"""The paper's figures from what was measured, as PNG and SVG (extra plot)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from divevlm import viz
from divevlm.core.metrics import relative_gold_likelihood
from divevlm.experiments.analysis.analyses import likelihoods
from divevlm.experiments.journal import Record
from divevlm.experiments.loading import rank
from divevlm.experiments.runner import Run
from divevlm.experiments.tasks import Item, right
from divevlm.files import write
from divevlm.methods import method_of, parse
from divevlm.viz.canvas import figure


def check() -> None:
    """Before the work: is there something to draw with?"""
    figure(1, 1, 1.0, 1.0)


def save(figure: Any, folder: Path, name: str) -> list[str]:
    """By the first process."""
    paths = [folder / f"{name}{kind}" for kind in (".png", ".svg")]
    for path in paths if rank()[0] == 0 else []:
        write(path, viz.rendered(figure, path.suffix))
    return [path.name for path in paths]


def updates(method: str) -> int:
    return int(parse(method)[1]["updates"])


def feedback(
    run: Run,
    rows: Sequence[dict[str, Any]],
    records: list[Record],
    folder: Path,
    name: str = "feedback",
    score: str = "right, %",
) -> list[str]:
    """Boxes of RGL by schedule with the rows' "accuracy", called `score`."""
    methods, logs = likelihoods(run.methods, run.keeps[0], records)
    scores = {row["method"]: row["accuracy"] for row in rows if row["keep"] == run.keeps[0]}
    gains = relative_gold_likelihood(logs).tolist()
    boxes = viz.feedback_boxes(gains, [updates(m) for m in methods], [scores[m] for m in methods], score)
    return save(boxes, folder, name)


def redundancy(run: Run, records: list[Record], folder: Path, name: str = "redundancy") -> list[str]:
    """Of the run's own methods and budgets, whatever else the folder holds; no picture where one token is left of each."""
    values: dict[int, dict[int | float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["method"] in run.methods and record["keep"] in run.keeps and record["redundancy"] is not None:
            values[updates(record["method"])][record["keep"]].append(record["redundancy"])
    return [] if not values else save(viz.redundancy_densities(dict(sorted(values.items()))), folder, name)


def curves(rows: Sequence[dict[str, Any]], names: dict[str, str], folder: Path, name: str) -> list[str]:
    """Score over seconds, one panel a task; names: method -> as the paper prints it."""
    panels: dict[str, dict[str, list[tuple[float, float, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for task, score in row["scores"].items():
            if score is None:  # the table says why
                continue
            label = f"{row['keep']:g}" if row["keep"] else ""
            panels[task][names.get(row["method"], row["method"])].append((row["column_seconds"][task], score, label))
    return save(viz.performance_latency(panels, "wall-clock time, s", "right, %"), folder, name)


def pictures(
    kind: str,
    model: Any,
    processor: Any,
    items: Sequence[Item],
    methods: dict[str, str],
    keep: int,
    folder: Path,
    name: str,
) -> tuple[list[str], list[dict[str, Any]]]:
    """Figures 5 to 7: of the first question, or of those that DIVE gets right and the other does not (then whatever comes
    first, if there are too few); and what was answered."""
    wanted = {"evolution": 1, "gallery": 4, "masks": 3}[kind]
    ready = [(label, _traced(spec, keep)) for label, spec in methods.items()]
    shown: list[tuple[bool, Any, Item]] = []
    seen: set[bytes] = set()
    for item in items:
        if (picture := item.draw()[0].tobytes()) in seen:  # one question about each picture
            continue
        seen.add(picture)
        asked = viz.ask(model, processor, item.text, item.draw(), ready, max_new_tokens=8)
        truth = {answer.label: right(answer.text, item.gold) for answer in asked.answers}
        dive = truth.pop("DIVE")
        shown.append((kind == "evolution" or (dive and not all(truth.values())), asked, item))
        if sum(told for told, _, _ in shown) == wanted:
            break
    chosen = sorted(shown, key=lambda one: not one[0])[:wanted]
    facts = [
        {"question": item.text, "gold": item.gold, "telling": told, "answers": {a.label: a.text for a in asked.answers}}
        for told, asked, item in chosen
    ]
    if kind == "gallery":
        rows = [(asked, asked.answers[0], asked.answers[-1]) for _, asked, _ in chosen]
        return save(viz.gallery(rows), folder, name), facts
    files: list[str] = []
    for number, (_, asked, _) in enumerate(chosen, 1):
        drawn = viz.evolution(asked, asked.answers[-1]) if kind == "evolution" else viz.masks(asked)
        files += save(drawn, folder, name if wanted == 1 else f"{name}-{number}")
    return files, facts


def _traced(spec: str, keep: int) -> Any:
    name, options = parse(spec)
    return method_of(name, keep, {**options, "trace": True} if name.startswith("dive") else options)
