"""Accuracy of a checkpoint with all visual tokens: `python -m training.score --folder runs/llava-0`.

An answer counts if every one of its tokens is the model's first choice, which is what greedy decoding would give.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from divevlm_tiny import build
from divevlm_tiny.splits import Sample, questions
from divevlm_tiny.words import TASKS, vocabulary

from divevlm.checks import at_least
from divevlm.terminal import one_line
from training.batches import IGNORE, pack
from training.forward import by_task, decode, encode
from training.loop import loaded

NUMBERS = {word: number for number, word in enumerate(vocabulary(build.IMAGE))}


@torch.inference_mode()
def score(model: Any, samples: list[Sample], images: int = 8) -> dict[str, tuple[int, int]]:
    """(right, asked) by task; `images` pictures at a time, the questions of each packed in one row."""
    pictures = [list(group) for _, group in groupby(samples, key=lambda sample: sample.scene.seed)]
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for at in range(0, len(pictures), images):
        chunk = pictures[at : at + images]
        asked_here = [[sample.question for sample in row] for row in chunk]
        made: dict[str, Any] = pack(asked_here, [row[0].scene for row in chunk], NUMBERS)
        made["places"] = torch.arange(576).expand(len(chunk), -1)
        made["hidden"] = torch.zeros(len(chunk), dtype=torch.bool)
        pixels = torch.from_numpy(np.stack([row[0].scene.pixels for row in chunk]))
        visual, _, _ = encode(model, pixels, made["places"])
        last = decode(model, NUMBERS, visual, made).last
        first_choice = (last @ model.lm_head.weight.T).argmax(-1)
        correct, answers = first_choice == made["target"], made["target"] != IGNORE
        for task, (good, all_of_them) in by_task(correct, answers, made["task"], made["segment"]).items():
            right[task] += good
            asked[task] += all_of_them
    return {task: (right[task], asked[task]) for task in TASKS}


def summary(counts: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Per task and for all questions: accuracy and its standard error, in percent."""
    counts = {**counts, "all": (sum(good for good, _ in counts.values()), sum(n for _, n in counts.values()))}
    rows = {}
    for task, (good, n) in counts.items():
        share = good / n if n else math.nan
        rows[task] = {
            "accuracy": 100 * share,
            "error": 100 * math.sqrt(share * (1 - share) / n) if n else math.nan,
            "n": n,
        }
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--split", choices=("validation", "test", "shift"), default="validation")
    parser.add_argument("--n", type=int, default=400)
    options = parser.parse_args(arguments)
    at_least("--n", options.n, 1)
    state = loaded(options.folder)
    model = build.llava().eval()
    model.load_state_dict(state["modules"]["model"])
    rows = summary(score(model, questions(options.split, options.n)))
    line = {"step": state["step"], "split": options.split, "n": options.n, "scores": rows}
    with (options.folder / "scores.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    print(state["step"], *(f"{task} {row['accuracy']:.1f}±{row['error']:.1f}" for task, row in rows.items()))


if __name__ == "__main__":
    raise SystemExit(one_line(main))
