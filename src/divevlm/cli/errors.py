"""Errors as people want them: one line, and an exit code."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable

from torch import OutOfMemoryError


def one_line(run: Callable[[], object]) -> int:
    """Run it. What users can mend is one line and exit code 2; Ctrl-C is exit code 130."""
    try:
        run()
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return _tell(str(error))
    except (OutOfMemoryError, ModuleNotFoundError) as error:
        name = getattr(error, "name", None)
        missing = "pillow" if name == "PIL" else name
        return _tell(f"this needs {missing}; `divevlm doctor` tells which extra brings it" if missing else str(error))
    except KeyboardInterrupt:
        print("divevlm: interrupted", file=sys.stderr)
        return 130
    return 0


def _tell(message: str) -> int:
    print(f"divevlm: {' '.join(message.split())}", file=sys.stderr)
    return 2


def at_least(option: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        kind = "" if math.isfinite(value) else "a number of "
        raise ValueError(f"{option} must be {kind}at least {least}, got {value}")


def counts(option: str, text: str, least: int, most: int) -> list[int]:
    """Whole numbers joined by commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and least <= int(part) <= most for part in parts):
        raise ValueError(f"{option} must be counts from {least} to {most}, got {text!r}")
    return [int(part) for part in parts]
