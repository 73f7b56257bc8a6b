"""divevlm analyze: what the mechanism does, on the embedded model or any other."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from divevlm.terminal import table

WHAT = {
    "feedback": "gold-answer likelihood by number of updates",
    "redundancy": "how alike the kept tokens are, by updates and budget",
    "runtime": "what updates cost in prefill and end to end",
    "sensitivity": "lambda, eta and h",
    "ablation": "DIVE without its parts",
    "positions": "original position ids or new ones",
    "placement": "cut at a block, or choose there and run all blocks on the kept",
    "energy": "where the energy goes, step by step",
}


EXAMPLES = """examples:
  divevlm analyze ablation                                       the embedded model and its tasks
  divevlm analyze redundancy --keep 16,32,64,128,192 --limit 20  five budgets, with a picture
  divevlm analyze runtime --keep 0.25 --new-tokens 64            a quarter of the tokens kept
  divevlm analyze placement --model llava-hf/llava-1.5-7b-hf --tasks pope --limit 200      (extra eval)
Sweeps go on where a killed one stopped; runtime and energy start again."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "analyze",
        help="what the mechanism does: " + ", ".join(WHAT),
        epilog="\n".join(f"{name:<12} {about}" for name, about in WHAT.items()) + f"\n\n{EXAMPLES}",
    )
    parser.add_argument("what", choices=tuple(WHAT))
    parser.add_argument("--model", default="llava", metavar="ID", help="an embedded model (llava), a path or an id")
    parser.add_argument(
        "--method", old=["--methods"], default="", help="instead of the analysis' own: names with options, by commas"
    )
    parser.add_argument("--keep", default="", help="budgets instead of the analysis' own; runtime, energy: one")
    parser.add_argument(
        "--tasks", default="embedded", help="embedded, some of its tasks, or lmms-eval names (extra eval)"
    )
    parser.add_argument("--include-path", type=Path, dest="include", metavar="DIR", help="lmms-eval tasks of your own")
    parser.add_argument("--limit", type=int, help="questions of each task (125; runtime 5, energy 16)")
    parser.add_argument("--split", default="validation", choices=("validation", "test", "shift"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16, dest="batch")
    parser.add_argument("--new-tokens", old=["--max-new-tokens"], type=int, help="generated in runtime (32)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: divevlm-results/analyze-WHAT; resumes there")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.experiments.analysis.command import analysis
    from divevlm.experiments.loading import rank

    out = options.out or Path("divevlm-results") / f"analyze-{options.what}"
    result, (head, lines) = analysis(options.what, out, options)
    if rank()[0]:  # not the first of several processes
        return
    if options.json:
        print(json.dumps(result))
    else:
        print(table(head, lines))
        print(f"\n{result['about']}; files in {out}")
