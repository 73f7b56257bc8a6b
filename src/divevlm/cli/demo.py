"""divevlm demo: the embedded model answers questions about drawn scenes, with all visual tokens and with a few."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, median
from typing import Any

from divevlm.checks import at_least
from divevlm.files import check_target, write
from divevlm.terminal import progress

# as the tables name it -> method, budget
SETTINGS = {"all tokens": ("vanilla", 576), "DIVE 64": ("dive", 64), "frozen 64": ("dive-no-update", 64),
            "random 64": ("random", 64), "DIVE 16": ("dive", 16), "frozen 16": ("dive-no-update", 16),
            "random 16": ("random", 16)}  # fmt: skip
BATCH = 8  # questions at a time: four are about one scene
TIMED = ("all tokens", "DIVE 64", "DIVE 16")
ROUNDS = 3  # of the timed runs


def add(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="the embedded model, with all visual tokens and with a few; no download",
        epilog="example: divevlm demo --limit 64 -o page.html",
    )
    demo.add_argument(
        "--limit",
        old=["--questions"],
        type=int,
        default=16,
        metavar="N",
        help="the first N of the validation split (default 16: two of each kind)",
    )
    demo.add_argument(
        "-o", "--out", type=Path, default=Path("divevlm-demo.html"), metavar="FILE", help="the explorer page"
    )
    demo.add_argument("--json", action="store_true", help="print one JSON object instead of the story")
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    import torch

    from divevlm.loading import load

    at_least("--limit", options.limit, 1)
    check_target("--out", options.out)
    torch.set_num_threads(1)  # more of them mostly wait in a model this small, for minutes where others work
    with progress("divevlm demo") as tick:
        tick("loading the embedded model")
        model, processor = load("llava")
        from divevlm_tiny import questions

        samples = questions("validation", options.limit)
        marks = answered(model, processor, samples, lambda done: tick("asking", done / len(samples)))
        example = chosen(samples, marks)
        tick("taking times")
        times = timed(model, processor, example)
        tick("writing the explorer page")
        write(options.out, example_page(model, processor, example))
    result = {
        "model": "tiny-llava",
        "split": "validation",
        "questions": [
            {"task": sample.task, "question": sample.text, "gold": sample.answer}
            | {"answers": {label: rows[i]["answer"] for label, rows in marks.items()}}
            for i, sample in enumerate(samples)
        ],
        "rows": summary(marks, times),
        "page": str(options.out),
    }
    if options.json:
        print(json.dumps(result))
        return
    from divevlm.cli.story import story

    print(story(result, example, {label: rows[samples.index(example)] for label, rows in marks.items()}))


def ready(label: str) -> Any:
    from divevlm.methods import method_of

    name, keep = SETTINGS[label]
    return None if name == "vanilla" else method_of(name, keep, {})


def answered(model: Any, processor: Any, samples: list[Any], tick: Any) -> dict[str, list[dict[str, Any]]]:
    """Every question under every setting. What is the same for all settings, the tower and the first blocks, runs once."""
    from divevlm.experiments.answering import Answerer
    from divevlm.experiments.tasks import item_of

    answerer, marks = Answerer(model, processor), {label: [] for label in SETTINGS}  # type: ignore[var-annotated]
    for at in range(0, len(samples), BATCH):
        some = samples[at : at + BATCH]
        items = [item_of(sample, str(sample.number)) for sample in some]
        for label in SETTINGS:
            for i, answer in enumerate(answerer.forced(items, ready(label))):
                kept = None if answerer.report is None else answerer.report.samples[i].kept
                shared = {"kept": kept, "objects_seen": covered(some[i], kept)}
                costs = {"kv_bytes": answer.kv, "kv_bytes_full": answer.kv_full}
                marks[label].append({"answer": answer.prediction, "right": bool(answer.score), **shared, **costs})
        tick(at + len(some))
    return marks


def covered(sample: Any, kept: list[int] | None) -> float | None:
    """The share of the objects asked about of which at least one token is left."""
    items = sample.question.items
    if not items:
        return None
    return 1.0 if kept is None else mean(not set(kept).isdisjoint(sample.scene.patches(index)) for index in items)


def chosen(samples: list[Any], marks: dict[str, list[dict[str, Any]]]) -> Any:
    """The first question that DIVE and frozen scores answer differently with 16 tokens, whoever is right; else the first."""
    pairs = zip(samples, marks["DIVE 16"], marks["frozen 16"], strict=True)
    return next((sample for sample, dive, frozen in pairs if dive["answer"] != frozen["answer"]), samples[0])


def timed(model: Any, processor: Any, sample: Any) -> dict[str, float]:
    """Seconds of the prefill by setting: medians, the settings in turn. How tokens were chosen makes no difference to it."""
    from divevlm.viz.asking import ask

    methods = [(label, ready(label)) for label in TIMED]
    rounds = [
        ask(model, processor, sample.text, [sample.image], methods, max_new_tokens=1).answers for _ in range(ROUNDS)
    ]
    return {
        answers[0].label: median(answer.prefill_seconds for answer in answers) for answers in zip(*rounds, strict=True)
    }


def summary(marks: dict[str, list[dict[str, Any]]], times: dict[str, float]) -> list[dict[str, Any]]:
    full = mean(row["kv_bytes_full"] for row in marks["DIVE 64"])
    rows = []
    for label, (_, keep) in SETTINGS.items():
        seen = [row["objects_seen"] for row in marks[label] if row["objects_seen"] is not None]
        bytes_held = [row["kv_bytes"] for row in marks[label] if row["kv_bytes"] is not None]
        rows.append(
            {
                "setting": label,
                "keep": keep,
                "right": sum(row["right"] for row in marks[label]),
                "of": len(marks[label]),
                "objects_seen": mean(seen) if seen else None,
                "kv_bytes": mean(bytes_held) if bytes_held else full,
                "prefill_ms": 1e3 * times[label] if label in TIMED else None,
                "speedup": times["all tokens"] / times[label] if label in TIMED else None,
            }
        )
    return rows


def example_page(model: Any, processor: Any, sample: Any) -> str:
    from divevlm.viz.asking import ask
    from divevlm.viz.explorer import page, settings

    runs = settings(["dive", "dive-no-update", "random"], [16])
    methods = [("all tokens", None), *runs]
    comparison = ask(model, processor, sample.text, [sample.image], methods, max_new_tokens=6, name="tiny-llava")
    return page(comparison, sample.answer)
