"""The `divevlm` command. One file a command: `add(commands)` describes it, `run(options)` does it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from divevlm import __version__

COMMANDS = ("demo", "bench", "methods", "models", "plan")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="divevlm", description="Keep the visual tokens that a prompt needs.")
    top.add_argument("--version", action="version", version=f"divevlm {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"divevlm.cli.{name}").add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Errors are one line and exit code 2; Ctrl-C is exit code 130."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except ValueError as error:
        print(f"divevlm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("divevlm: interrupted", file=sys.stderr)
        return 130
    return 0
