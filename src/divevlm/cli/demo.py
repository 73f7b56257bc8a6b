"""divevlm demo: the embedded model answers questions about drawn scenes, with all visual tokens and with a few."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from divevlm.checks import at_least
from divevlm.files import check_target, write
from divevlm.terminal import progress

SETTINGS = (("all", "vanilla", 576), ("DIVE 64", "dive", 64), ("frozen 64", "dive-no-update", 64),
            ("random 64", "random", 64), ("DIVE 16", "dive", 16), ("frozen 16", "dive-no-update", 16),
            ("random 16", "random", 16))  # fmt: skip


def add(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="the embedded model, with all visual tokens and with a few; no download",
        epilog="example: divevlm demo --limit 16 -o page.html",
    )
    demo.add_argument(
        "--limit",
        old=["--questions"],
        type=int,
        default=12,
        metavar="N",
        help="the first N of the validation split (default 12)",
    )
    demo.add_argument(
        "-o", "--out", type=Path, default=Path("divevlm-demo.html"), metavar="FILE", help="the explorer page"
    )
    demo.add_argument("--json", action="store_true", help="print one JSON object instead of the story")
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.loading import load

    at_least("--limit", options.limit, 1)
    check_target("--out", options.out)
    with progress("divevlm demo") as tick:
        tick("loading the embedded model")
        model, processor = load("llava")
        records = []
        for number, sample in enumerate(samples(options.limit)):
            tick(sample.text, number / options.limit)
            records.append(answered(model, processor, sample))
        tick("writing the explorer page")
        example = best_example(records)
        write(options.out, example_page(model, processor, example))
    result = {
        "model": "tiny-llava",
        "split": "validation",
        "questions": [{k: v for k, v in record.items() if k not in ("comparison", "sample")} for record in records],
        "rows": summary(records),
        "page": str(options.out),
    }
    if options.json:
        print(json.dumps(result))
        return
    from divevlm.cli.story import story

    print(story(result, records, example))


def samples(n: int) -> list[Any]:
    from divevlm_tiny import questions

    return questions("validation", n)


def ask_about(model: Any, processor: Any, sample: Any, methods: list[Any]) -> Any:
    from divevlm.viz.asking import ask

    return ask(model, processor, sample.text, [sample.image], methods, max_new_tokens=6, name="tiny-llava")


def answered(model: Any, processor: Any, sample: Any) -> dict[str, Any]:
    """One question under every setting."""
    from divevlm.methods import method_of

    methods = [(label, None if name == "vanilla" else method_of(name, keep, {})) for label, name, keep in SETTINGS]
    comparison = ask_about(model, processor, sample, methods)
    answers = {answer.label: answer.text for answer in comparison.answers}
    return {
        "task": sample.task,
        "question": sample.text,
        "gold": sample.answer,
        "answers": answers,
        "comparison": comparison,
        "sample": sample,
    }


def summary(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for number, (label, _, keep) in enumerate(SETTINGS):
        answers = [
            (record, record["comparison"].answers[number], record["comparison"].answers[0]) for record in records
        ]
        report = next((answer.report for _, answer, _ in answers if answer.report is not None), None)
        full = answers[0][0]["comparison"].answers[1].report
        seen = [share for record, answer, _ in answers if (share := covered(record["sample"], answer)) is not None]
        rows.append(
            {
                "setting": label,
                "keep": keep,
                "right": sum(answer.text == record["gold"] for record, answer, _ in answers),
                "of": len(answers),
                "objects_seen": sum(seen) / len(seen) if seen else None,
                "kv_bytes": full.kv_bytes_full if report is None else report.kv_bytes,
                "prefill_ms": 1e3 * median(answer.prefill_seconds for _, answer, _ in answers),
                "speedup": median(whole.prefill_seconds / answer.prefill_seconds for _, answer, whole in answers),
            }
        )
    return rows


def covered(sample: Any, answer: Any) -> float | None:
    """The share of the objects asked about of which at least one token is left."""
    items = sample.question.items
    if not items:
        return None
    if answer.report is None:
        return 1.0
    kept = set(answer.report.samples[0].kept)
    return sum(not kept.isdisjoint(sample.scene.patches(index)) for index in items) / len(items)


def best_example(records: list[dict[str, Any]]) -> dict[str, Any]:
    """A question that DIVE answers with 16 tokens and frozen scores don't, if there is one; of several, that where DIVE keeps
    most of what is asked for."""
    fits = [
        record for record in records if record["answers"]["DIVE 16"] == record["gold"] != record["answers"]["frozen 16"]
    ]
    labels = [label for label, _, _ in SETTINGS]

    def coverage(record: dict[str, Any]) -> float:
        return covered(record["sample"], record["comparison"].answers[labels.index("DIVE 16")]) or 0.0

    return max(fits or records, key=coverage)


def example_page(model: Any, processor: Any, example: dict[str, Any]) -> str:
    from divevlm.viz.explorer import page, settings

    runs = settings(["dive", "dive-no-update", "fastv", "random"], [64, 16], [0.0, 3.0], [0.4, 1.0])
    sample = example["sample"]
    return page(ask_about(model, processor, sample, [("all tokens", None), *runs]), sample.answer)
