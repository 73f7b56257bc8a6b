"""argparse with errors in one line that say what was meant, and options that had another name once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from divevlm.checks import hint


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
        self.words = list(args or ())
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self.unknown(unknown))
        return options, unknown

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            message += hint(choice[1], re.findall(r"[\w-]+", choice[2]))
        elif "are required" in message and (mistyped := [word for word in self.words if self.is_unknown(word)]):
            message = self.unknown(mistyped)
        raise ValueError(f"{message} ({self.prog} --help)")

    def unknown(self, words: Sequence[str]) -> str:
        return f"{self.prog} does not know {' '.join(words)}{hint(words[0].partition('=')[0], self._option_string_actions)}"

    def is_unknown(self, word: str) -> bool:
        name = word.partition("=")[0]  # which may be cut short
        return bool(re.match("--?[a-z]", name)) and not any(o.startswith(name) for o in self._option_string_actions)
