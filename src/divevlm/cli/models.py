"""divevlm models: the families that can be pruned, and checkpoints of theirs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from divevlm.terminal import table


def add(commands: Any) -> None:
    models = commands.add_parser(
        "models", help="supported families and checkpoints of theirs", epilog="example: divevlm models --json"
    )
    form = models.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    form.add_argument("--markdown", action="store_true", help="print the table as the README has it")
    models.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.models import FAMILIES

    families = [FAMILIES.get(name) for name in FAMILIES]
    if options.json:
        rows = [{"family": f.name, "checkpoints": f.checkpoints, "default_layer": f.default_layer} for f in families]
        print(json.dumps({"rows": rows}))
        return
    if options.markdown:
        print("| family (`model_type`) | visual tokens | video | cut before block | such as |\n|---|---|---|---|---|")
        for f in families:
            print(f"| `{f.name}` | {f.about} | {f.videos} | {f.default_layer} | {', '.join(f.checkpoints[:1])} |")
        return
    lines = [
        [f.name if i == 0 else "", checkpoint] for f in families for i, checkpoint in enumerate(f.checkpoints or [""])
    ]
    print(table(["family", "checkpoints"], lines, left=["checkpoints"]))
    print("\nLoad them with plain transformers; 7B and 13B differ in their config only.")
