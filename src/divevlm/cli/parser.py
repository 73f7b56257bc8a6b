"""argparse with errors in one line that say what was meant, and options that had another name once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(**({"formatter_class": argparse.RawDescriptionHelpFormatter} | options))

    def add_argument(self, *names: Any, old: Sequence[str] = (), **options: Any) -> argparse.Action:
        """old: other names of the option, which work and are not shown."""
        action = super().add_argument(*names, **options)
        hidden = {"dest": action.dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        for name in old:
            super().add_argument(name, **(options | hidden))
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is unknown here, where all options of the command are known."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            self.error(f"{self.prog} does not know {' '.join(unknown)}{hint(unknown[0].partition('=')[0], known)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            message += hint(choice[1], re.findall(r"[\w-]+", choice[2]))
        raise ValueError(f"{message} ({self.prog} --help)")


def hint(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f": did you mean {near[0]!r}?" if near else ""
