"""divevlm methods: what can be attached to a model."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import Any

from divevlm.cli.output import table


def add(commands: Any) -> None:
    methods = commands.add_parser("methods", help="pruning methods and their settings")
    methods.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    methods.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.methods import METHODS, Method

    common = {f.name for f in fields(Method)}
    rows: list[dict[str, Any]] = []
    for name in METHODS:
        kind = METHODS.get(name)
        own = {f.name: f.default for f in fields(kind) if f.init and f.name not in common}
        about = (kind.__doc__ or "").splitlines()[0]
        rows.append({"method": name, "about": about, "settings": own})
    if options.json:
        print(json.dumps({"rows": rows}))
        return
    width = max(len(row["about"]) for row in rows)
    print(table(["method", "about".ljust(width)], [[row["method"], row["about"].ljust(width)] for row in rows]))
    print(f"\nEvery method also takes {', '.join(sorted(common - {'budget'}))}.")
