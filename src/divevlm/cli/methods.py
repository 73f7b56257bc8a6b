"""divevlm methods: what can be attached to a model."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import Any

from divevlm.terminal import table

HEAD = ("method", "paper", "chooses", "reads the prompt", "merges", "cost of choosing", "families")


def add(commands: Any) -> None:
    methods = commands.add_parser(
        "methods", help="pruning methods and their settings", epilog="examples: divevlm methods; divevlm methods dive"
    )
    methods.add_argument("name", nargs="?", metavar="METHOD", help="tell all of this one")
    form = methods.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    form.add_argument("--markdown", action="store_true", help="print the table as the README has it")
    methods.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.methods import METHODS, Method

    common = {f.name for f in fields(Method)}
    if options.json or options.name:
        described = [_row(METHODS.get(name), common) for name in ([options.name] if options.name else METHODS)]
        print(json.dumps({"rows": described}) if options.json else _text(described[0], Method))
        return
    rows = [_cells(METHODS.get(name)) for name in METHODS]
    if options.markdown:  # DIVE without a part is told below the table
        kinds = [METHODS.get(name) for name in METHODS if not name.startswith("dive-no-")]
        rows = [[kind.name, _linked(kind), *_cells(kind)[2:]] for kind in kinds]
        print("\n".join("| " + " | ".join(cells) + " |" for cells in [HEAD, ["---"] * len(HEAD), *rows]))
        return
    print(table(HEAD, rows, left=HEAD))
    print(f"\nEvery method also takes {', '.join(sorted(common))}; settings of each: divevlm methods METHOD.")


def _cells(kind: Any) -> list[str]:
    families = ", ".join(_families(kind) or ["all"])
    yes = {True: "yes", False: ""}
    return [kind.name, kind.paper, kind.stage, yes[kind.reads_text], yes[kind.merges], kind.cost, families]


def _linked(kind: Any) -> str:
    return f"[{kind.paper}](https://arxiv.org/abs/{kind.arxiv})" if kind.arxiv else kind.paper


def _families(kind: Any) -> list[str] | None:
    """Where it works; None = everywhere. A method that has to work in the tower needs one whose patches are the tokens."""
    from divevlm.models import FAMILIES

    plain = [name for name in FAMILIES if FAMILIES.get(name).plain]
    return plain if kind(keep=1).in_tower(plain=False) else None


def _row(kind: Any, common: set[str]) -> dict[str, Any]:
    return {
        "method": kind.name,
        "about": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
        "paper": kind.paper,
        "arxiv": kind.arxiv,
        "stage": kind.stage,
        "reads_text": kind.reads_text,
        "merges": kind.merges,
        "cost": kind.cost,
        "families": _families(kind),
        "settings": {f.name: f.default for f in fields(kind) if f.init and f.name not in common},
    }


def _text(row: dict[str, Any], base: Any) -> str:
    """One method: what it is, its own settings, and those of every method, with their defaults."""
    lines = [row["method"] + (f" ({row['paper']})" if row["paper"] else ""), row["about"]]
    lines += [f"https://arxiv.org/abs/{row['arxiv']}"] * bool(row["arxiv"]) + [""]
    common = {f.name: f.default for f in fields(base) if f.init} | {"keep": "needed: a count or a share"}
    for title, settings in (("its settings", row["settings"]), ("settings of every method", common)):
        lines += [f"{title}:", *(f"  {name:<16} {value}" for name, value in settings.items()), ""]
    return "\n".join([*lines, f"example: divevlm run photo.jpg QUESTION --method {row['method']} --keep 64"])
