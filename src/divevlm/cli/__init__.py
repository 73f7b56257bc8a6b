"""The `divevlm` command. One file a command: `add(commands)` describes it, `run(options)` does it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from divevlm import __version__
from divevlm.cli.errors import one_line

COMMANDS = (
    "demo",
    "run",
    "explore",
    "bench",
    "eval",
    "reproduce",
    "analyze",
    "serve",
    "methods",
    "models",
    "plan",
    "check",
    "doctor",
)

EXAMPLES = """examples:
  divevlm demo                                              the embedded model: no download
  divevlm run photo.jpg "What is on the table?" --model llava-hf/llava-1.5-7b-hf --keep 64 --compare fastv,random
  divevlm explore photo.jpg "What is on the table?" --model PATH -o page.html
  divevlm plan all --keep 64                                what each method keeps in every block
  divevlm check llava-hf/llava-1.5-7b-hf                    does pruning work on your checkpoint and card?
  divevlm doctor                                            is everything in order here?

Every command has --help and --json."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="divevlm",
        description="Keep the visual tokens that a prompt needs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"divevlm {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"divevlm.cli.{name}").add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Errors are one line and exit code 2; Ctrl-C is exit code 130."""

    def run() -> None:
        options = parser().parse_args(arguments)
        options.run(options)

    return one_line(run)
