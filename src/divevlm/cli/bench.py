"""divevlm bench: measure on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from divevlm.cli.output import progress, table


def add(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure on this machine")
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="WHAT")
    selection = kinds.add_parser(
        "selection",
        help="time of selection, against Algorithm 1 as printed and against the one product X X^T",
        epilog="example: divevlm bench selection --shape 576,4096,40,64 --rounds 21 --json",
    )
    selection.add_argument(
        "--shape", action="append", metavar="N,d,M,K[,B]", help="instead of the six standard shapes; repeatable"
    )
    selection.add_argument("--rounds", type=int, default=9, help="runs of each path, interleaved (default 9)")
    selection.add_argument("--slow-rounds", type=int, default=3, help="runs of the slow baselines (default 3)")
    selection.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    selection.add_argument("--out", type=Path, metavar="FILE", help="also write the JSON to a file")
    selection.set_defaults(run=run_selection)


def run_selection(options: argparse.Namespace) -> None:
    from divevlm.bench.selection import SHAPES, Shape, measure

    for name in ("rounds", "slow_rounds"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    shapes = [Shape(*_shape(text)) for text in options.shape] if options.shape else SHAPES
    with progress("bench selection") as tick:
        result = measure(shapes, options.rounds, options.slow_rounds, tick)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if options.json else _selection_table(result))


def _shape(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) not in (4, 5) or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"--shape must be N,d,M,K or N,d,M,K,B with whole numbers of at least 1, got {text!r}")
    return [int(part) for part in parts]


def _selection_table(result: dict[str, Any]) -> str:
    head = ["(N, d, M, K)", "path", "ms", "over reference", "of floor", "peak / N^2", "picks"]
    rows, last = [], None
    for row in result["rows"]:
        rows.append(
            [
                row["shape"] if row["shape"] != last else "",
                row["path"],
                f"{row['ms']:.1f}",
                f"{row['over_reference']:.1f}x" if "over_reference" in row else f"{row['ms_per_sample']:.1f} ms each",
                f"{row['of_floor']:.2f}x" if "of_floor" in row else "",
                f"{row['peak_over_n2']:.2f}" if "peak_over_n2" in row else "",
                {True: "equal", False: "DIFFER"}[row["same_picks"]] if "same_picks" in row else "",
            ]
        )
        last = row["shape"]
    versions = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    return f"{table(head, rows)}\n\nmedians of interleaved runs; floor = the product X X^T alone; {versions}"
