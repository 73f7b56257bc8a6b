"""divevlm run: one question, with all visual tokens and with the kept ones, side by side."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from divevlm.checks import at_least, keep, names
from divevlm.cli.loading import add_model_options, ask_all, media_and_question
from divevlm.files import check_picture, check_target, write
from divevlm.terminal import table

EXAMPLES = """examples:
  divevlm run photo.jpg "What is on the table?" --model llava-hf/llava-1.5-7b-hf --keep 64
  divevlm run a.png b.png "What has changed?" --model PATH --keep 0.15 --compare fastv,visionzip,random --png kept.png
  divevlm run clip.mp4 "Who wins?" --model PATH --frames 16 --method dive:eta=0.5 --html page.html"""


def add(commands: Any) -> None:
    run_command = commands.add_parser(
        "run",
        help="ask a model with all visual tokens and with the kept ones",
        epilog=EXAMPLES,
    )
    run_command.add_argument(
        "what", nargs="+", metavar="IMAGE ... QUESTION", help="pictures or videos, then the question"
    )
    run_command.add_argument(
        "--method", old=["--methods"], default="dive", metavar="NAME", help="with settings: dive:eta=0.5 (default dive)"
    )
    run_command.add_argument("--keep", default="64", help="visual tokens of an image: a count or a share (64)")
    run_command.add_argument("--compare", default="", metavar="NAMES", help="other methods, joined by commas")
    run_command.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="times are medians of so many runs, in turn (default 3)"
    )
    run_command.add_argument("--html", type=Path, metavar="FILE", help="write the explorer page")
    run_command.add_argument("--png", type=Path, metavar="FILE", help="draw what each method keeps (.png or .svg)")
    run_command.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    add_model_options(run_command)
    run_command.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    check_target("--html", options.html)
    check_picture("--png", options.png)
    at_least("--repeats", options.repeats, 1)
    methods = chosen(options)
    media, question = media_and_question(options)
    comparison, timed = asked(options, media, question, [("vanilla", None), *methods])
    result = as_rows(timed) | {"repeats": options.repeats}
    print(json.dumps(result) if options.json else as_text(result))
    if options.html:
        from divevlm.viz.explorer import page

        write(options.html, page(comparison))
    if options.png:
        from divevlm.viz import masks, rendered

        write(options.png, rendered(masks(comparison), options.png.suffix))
    if not options.json:
        for file in (options.html, options.png):
            if file:
                print(f"wrote {file}")


def asked(
    options: argparse.Namespace, media: list[Any], question: str, methods: list[tuple[str, Any]]
) -> tuple[Any, Any]:
    """The first round of answers, as the page tells it; and the same with the medians of all rounds as times."""
    again = [(label, replace(method, trace=False) if hasattr(method, "trace") else method) for label, method in methods]
    comparison = ask_all(options, "divevlm run", media, question, methods + again * (options.repeats - 1))
    count, answers = len(methods), comparison.answers
    rounds = [answers[i::count] for i in range(count)]
    first, timed = (replace(comparison, answers=some) for some in (answers[:count], [_median(some) for some in rounds]))
    return first, timed


def _median(rounds: list[Any]) -> Any:
    """The first of the rounds, with medians as times."""
    names = ("prefill_seconds", "first_seconds", "seconds")
    report = rounds[0].report
    if report is not None:
        report = replace(report, selection_ms=median(one.report.selection_ms for one in rounds))
    return replace(rounds[0], report=report, **{name: median(getattr(one, name) for one in rounds) for name in names})


def chosen(options: argparse.Namespace) -> list[tuple[str, Any]]:
    """The method and those to compare it with, as they were written. DIVE notes its steps if a page is to show them."""
    from divevlm.methods import METHODS, method_of, parse
    from divevlm.methods.dive import DIVE

    others = names("--compare", options.compare) if options.compare else ()
    methods, budget = [], keep(options.keep)
    for text in dict.fromkeys([options.method, *others]):
        name, settings = parse(text)
        if options.html and issubclass(METHODS.get(name), DIVE):
            settings["trace"] = True
        methods.append((text, method_of(name, budget, settings)))
    return methods


def as_rows(comparison: Any) -> dict[str, Any]:
    """One row a method; the first is the model as it is."""
    full, rows = comparison.answers[0], []
    reports = [answer.report for answer in comparison.answers[1:]]
    for answer in comparison.answers:
        report = answer.report
        sample = report.samples[0] if report else None
        rows.append(
            {
                "method": answer.label,
                "answer": answer.text,
                "same_answer": answer.text == full.text,
                "kept": len(sample.kept) if sample else comparison.visual,
                "indices": sample.kept if sample else None,
                "order": sample.order if sample else None,
                "kv_bytes": report.kv_bytes if report else reports[0].kv_bytes_full,
                "prefill_ms": 1e3 * answer.prefill_seconds,
                "speedup": full.prefill_seconds / answer.prefill_seconds,
                "first_token_ms": 1e3 * answer.first_seconds,
                "token_ms": None if answer.token_seconds is None else 1e3 * answer.token_seconds,
                "selection_ms": report.selection_ms if report else 0.0,
            }
        )
    head = {
        "question": comparison.question,
        "model": comparison.model,
        "family": comparison.family,
        "visual": comparison.visual,
    }
    return head | {"text": len(comparison.words), "rows": rows}


def as_text(result: dict[str, Any]) -> str:
    once = result["repeats"] == 1
    head = ["method", "visual tokens", "KV cache", "prefill", "speed-up", "first token", "next token", "selection"]
    lines = [
        [
            row["method"],
            str(row["kept"]),
            f"{row['kv_bytes'] / 2**20:.2f} MB",
            f"{row['prefill_ms']:.0f} ms",
            "-" if once else f"{row['speedup']:.2f}x",
            f"{row['first_token_ms']:.0f} ms",
            "-" if row["token_ms"] is None else f"{row['token_ms']:.1f} ms",
            f"{row['selection_ms']:.1f} ms",
        ]
        for row in result["rows"]
    ]
    wide = max(len(row["method"]) for row in result["rows"])
    answers = "\n".join(f"{row['method']:<{wide}}  {' '.join(row['answer'].split())}" for row in result["rows"])
    about = f"{result['model']} ({result['family']}): {result['visual']} visual tokens, {result['text']} of text"
    times = "times of one run each, too few to compare" if once else f"times: medians of {result['repeats']} runs"
    note = "prefill: the language model with selection; first token: with the vision tower"
    return f"{about}\n\n{table(head, lines)}\n\n{answers}\n\n{times}; {note}"
