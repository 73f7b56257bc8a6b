"""The learning curve of a run as a picture: `python -m training.curve training/logs/llava/log.jsonl curve.png`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from divevlm_tiny.clips import CLIP_TASKS

from divevlm.terminal import one_line
from training.batches import ALL_TASKS

VISION = ("patch shape", "patch color", "patch printed", "patch size")


def draw(log: Path, picture: Path, smooth: int = 5) -> None:
    """Accuracy on the training stream over minutes: what patches show on the left, answers by task on the right."""
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, names in zip(figure.subplots(1, 2), (VISION, ALL_TASKS), strict=True):
        for name in names:
            points = [(line["minutes"], line["accuracy"][name]) for line in lines if name in line["accuracy"]]
            if not points:  # tasks on clips in a run on pictures
                continue
            minutes = [minute for minute, _ in points]
            axes.plot(
                minutes,
                _running([100 * value for _, value in points], smooth),
                label=name,
                linewidth=1.2,
                linestyle="--" if name in CLIP_TASKS else "-",
            )
        _phases(axes, lines)
        axes.set_xlabel("minutes of training")
        axes.set_ylim(0, 101)
        axes.legend(fontsize=7, ncol=2, loc="lower right")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("right, % (training stream)")
    figure.savefig(picture, dpi=130)


def _phases(axes: Any, lines: list[dict[str, Any]]) -> None:
    last = ""
    for line in lines:
        if line["phase"] != last:
            axes.axvline(line["minutes"], color="gray", linewidth=0.6)
            axes.annotate(line["phase"], (line["minutes"], 100), fontsize=7, rotation=90, va="top")
        last = line["phase"]


def _running(values: list[float], width: int) -> list[float]:
    return [sum(part) / len(part) for i in range(len(values)) for part in [values[max(0, i - width + 1) : i + 1]]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(arguments)
    draw(options.log, options.picture)


if __name__ == "__main__":
    raise SystemExit(one_line(main))
