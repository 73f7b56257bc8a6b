"""divevlm reproduce: the paper's tables and figures, measured beside printed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from divevlm.terminal import table

EXAMPLES = """examples:
  divevlm reproduce --list
  divevlm reproduce table1                                     the embedded model on drawn scenes, a CPU
  divevlm reproduce figure4 --out results/figure4
  divevlm reproduce table1 --scale full --limit 200            the paper's model and benchmarks (GPUs, extra eval)"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "reproduce",
        help="the paper's tables and figures, measured beside printed",
        epilog=EXAMPLES,
    )
    parser.add_argument("recipe", nargs="?", help="table1 ... table14, figure3 ... figure7")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument(
        "--scale",
        choices=("embedded", "full"),
        default="embedded",
        help="embedded: the small model on drawn scenes (default); full: the paper's model and benchmarks",
    )
    parser.add_argument("--model", metavar="ID", help="instead of the recipe's: an embedded one, a path or an id")
    parser.add_argument(
        "--limit",
        help="samples of each task, or of some: vqav2=2000,all (VQAv2: 5,000 unless told); every category is among them",
    )
    parser.add_argument("--batch-size", type=int, dest="batch", help="full scale: 1, as in the paper; embedded: 16")
    parser.add_argument(
        "--split", default="validation", choices=("validation", "test", "shift"), help="of the embedded tasks"
    )
    parser.add_argument("--seed", type=int, default=0)
    full = parser.add_argument_group("full scale")
    full.add_argument(
        "--inputs",
        choices=("stock", "template", "chat"),
        default="stock",
        help="as lmms-eval's own models make them (default), or by the checkpoint's chat template",
    )
    full.add_argument(
        "--ocr",
        action=argparse.BooleanOptionalAction,
        help="OCR tokens in TextVQA's prompts (default: as the recipe says)",
    )
    full.add_argument("--pad", action="store_true", help="LLaVA-1.5: pictures padded to squares instead of cropped")
    full.add_argument("--dtype", help="auto (default on GPUs: the checkpoint's own), float32, float16 or bfloat16")
    full.add_argument("--device-map", choices=("auto",), help="spread the model over all GPUs of this process")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: divevlm-results/RECIPE-SCALE; resumes there")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.experiments.paper.consistency import misfits
    from divevlm.experiments.paper.recipe import names, recipe

    if options.list or options.recipe is None:
        recipes = [recipe(name) for name in names()]
        rows = [
            {"recipe": r.name, "title": r.title, "model": r.settings.get("model", "several"), "kind": r.kind}
            | {"budgets": r.budgets, "misfits": [str(one) for one in misfits(r)]}
            for r in recipes
        ]
        if options.json:
            print(json.dumps({"rows": rows}))
            return
        lines = [[row["recipe"], row["title"], row["model"]] for row in rows]
        print(table(["recipe", "what", "model of the paper"], lines, left=["what"]))
        return
    from divevlm.experiments.limits import Limits
    from divevlm.experiments.loading import rank
    from divevlm.experiments.paper.reproduce import Order, reproduce

    recipe(options.recipe)  # an unknown one is told before anything is loaded
    out = options.out or Path("divevlm-results") / f"{options.recipe}-{options.scale}"
    same = ("scale", "model", "batch", "split", "seed", "inputs", "ocr", "pad", "dtype", "device_map")
    limits = None if options.limit is None else Limits.parse(options.limit)
    order = Order(out=out, limits=limits, **{name: getattr(options, name) for name in same})
    result, (head, lines) = reproduce(options.recipe, order)
    if rank()[0]:  # not the first of several processes
        return
    if options.json:
        print(json.dumps(result))
        return
    print(table(head, lines))
    print(f"\n{result['title']}; scale {options.scale}; files in {out}")
