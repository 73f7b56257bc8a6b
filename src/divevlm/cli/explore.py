"""divevlm explore: a page that walks through the selection, step by step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from divevlm.checks import keeps, names, numbers
from divevlm.cli.loading import add_model_options, ask_all, media_and_question
from divevlm.files import check_target, write

EXAMPLES = """examples:
  divevlm explore photo.jpg "What is on the table?" --model llava-hf/llava-1.5-7b-hf -o page.html
  divevlm explore clip.mp4 "Who wins?" --model PATH --keep 0.15,0.05 --method dive,fastv --lam 0,1.5 --eta 0.8,1"""


def add(commands: Any) -> None:
    explore = commands.add_parser(
        "explore",
        help="write a page that shows how tokens are chosen, step by step",
        epilog=EXAMPLES,
    )
    explore.add_argument("what", nargs="+", metavar="IMAGE ... QUESTION", help="pictures or videos, then the question")
    explore.add_argument("-o", "--out", type=Path, default=Path("page.html"), metavar="FILE", help="default page.html")
    explore.add_argument(
        "--method",
        old=["--methods"],
        default="dive,dive-no-update,fastv,random",
        metavar="NAMES",
        help="names joined by commas",
    )
    explore.add_argument("--keep", default="64,16", metavar="K,K", help="budgets: counts or shares (default 64,16)")
    explore.add_argument("--lam", default="0,1.5,3", metavar="L,L", help="prompt strengths of the first method")
    explore.add_argument("--eta", default="0.4,0.8,1", metavar="E,E", help="feedback strengths of the first method")
    explore.add_argument("--json", action="store_true", help="print one JSON object about the page")
    add_model_options(explore)
    explore.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.viz.explorer import page, settings

    check_target("--out", options.out)
    runs = list(
        settings(
            names("--method", options.method),
            keeps(options.keep),
            numbers("--lam", options.lam),
            numbers("--eta", options.eta),
        )
    )
    media, question = media_and_question(options)
    comparison = ask_all(options, "divevlm explore", media, question, [("all tokens", None), *runs])
    html = page(comparison)
    write(options.out, html)
    rows = [{"setting": answer.label, "answer": answer.text} for answer in comparison.answers]
    if options.json:
        print(
            json.dumps(
                {"page": str(options.out), "bytes": len(html.encode()), "visual": comparison.visual, "rows": rows}
            )
        )
        return
    print(f"wrote {options.out} ({len(html) / 1e6:.1f} MB, {len(runs)} settings): open it in any browser")
