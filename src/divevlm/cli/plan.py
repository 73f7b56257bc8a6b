"""divevlm plan: matched budgets."""

from __future__ import annotations

import argparse
import json
from typing import Any

from divevlm.checks import keep
from divevlm.terminal import table


def add(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="what a method keeps in each block, and what that costs",
        epilog="example: divevlm plan fastv --keep 64 --match layer-mean; divevlm plan all --tokens 2880 --keep 320",
    )
    plan.add_argument("method", help="a method, or all")
    plan.add_argument("--model", metavar="MODEL", help="take the shape from this model's config")
    plan.add_argument("--keep", required=True, help="visual tokens of an image: a count or a share")
    plan.add_argument(
        "--match",
        choices=("final", "layer-mean"),
        default="final",
        help="keep that many in the end (default), or as a mean over the blocks",
    )
    for name, what in (
        ("tokens", "visual tokens of an image (576)"),
        ("layers", "decoder blocks (32)"),
        ("width", "hidden size (4096)"),
        ("mlp", "width of the MLP (11008)"),
        ("text", "text tokens (64)"),
        ("views", "views that the tokens are of (1)"),
    ):
        plan.add_argument(f"--{name}", type=int, help=what)
    plan.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    plan.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.methods import METHODS
    from divevlm.planning import VANILLA, plan

    budget = keep(options.keep)
    shape = {name: getattr(options, name) for name in ("tokens", "layers", "width", "mlp", "text", "views")}
    every = options.method == "all"
    rows: list[dict[str, Any]] = []
    for name in [VANILLA, *METHODS] if every else [options.method]:
        try:
            planned = plan(name, options.model, keep=budget, match=options.match, **shape)
        except ValueError as error:
            if not every or name == VANILLA:
                raise
            rows.append({"method": name, "match": options.match, "error": str(error)})
            continue
        rows.append(planned.to_dict() | {"blocks": planned.runs()})
    if options.json:
        print(json.dumps({"rows": rows}))
    elif every:
        head = ["method", "in the end", "mean entering", "leaving", "prefill", "KV", "blocks"]
        print(table(head, [_cells(row) for row in rows], left=["blocks"]))
        print(f"\nmatch {options.match}; prefill and KV cache relative to all tokens; setting of each: --json")
        for row in rows:
            if "error" in row:
                print(f"{row['method']}: {row['error']}")
            elif options.match == "layer-mean" and row["mean"] - row["keep"] > 1 > row["leaving_mean"] - row["keep"]:
                print(f"{row['method']}: its authors' lists, which match the tokens that leave a block")
    else:
        print(planned)


def _cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["method"], *[""] * 5, "not possible"]
    return [
        row["method"],
        str(row["final"]),
        f"{row['mean']:.1f}",
        f"{row['leaving_mean']:.1f}",
        f"{100 * row['flops_share']:.1f} %",
        f"{100 * row['kv_share']:.1f} %",
        row["blocks"],
    ]
