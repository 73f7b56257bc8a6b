"""The `divevlm` command. One file a command: `add(commands)` describes it, `run(options)` does it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from divevlm import __version__
from divevlm.cli.parser import Parser
from divevlm.terminal import one_line

COMMANDS = (
    "demo",
    "run",
    "explore",
    "batch",
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
  divevlm batch rows.jsonl --out DIR --model PATH           a file of questions; goes on where it was stopped
  divevlm plan all --keep 64                                what each method keeps in every block
  divevlm check llava-hf/llava-1.5-7b-hf                    does pruning work on your checkpoint and card?
  divevlm doctor                                            is everything in order here?

Every command has --help, all but serve --json."""


def parser() -> Parser:
    top = Parser(prog="divevlm", description="Keep the visual tokens that a prompt needs.", epilog=EXAMPLES)
    top.add_argument("--version", action="version", version=f"divevlm {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"divevlm.cli.{name}").add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Errors are one line and exit code 2; Ctrl-C is exit code 130. Without a command: the help."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def run() -> None:
        options = parser().parse_args(words or ["--help"])
        options.run(options)

    return one_line(run)
