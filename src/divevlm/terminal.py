"""What people see on a terminal: tables, progress, errors in one line. With rich on a terminal, plain text in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

EXTRAS = {  # what brings a package that may be missing
    "PIL": "cli",
    "av": "video",
    "fastapi": "serve",
    "httpx": "serve",
    "openai": "serve",
    "prometheus_client": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "vllm": "vllm",
    "divevlm_tiny": "demo",
    "lmms_eval": "eval",
    "matplotlib": "plot",
    "numpy": "demo",
    "ray": "ray",
    "rich": "cli",
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[str] = ()) -> str:
    """The first column and those whose heads are in `left` to the left, the others to the right."""
    left = {head[0], *left}
    if rich_output(sys.stdout):
        return _rich_table(head, rows, left)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        columns = zip(head, cells, widths, strict=True)
        return "  ".join(cell.ljust(w) if name in left else cell.rjust(w) for name, cell, w in columns).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *(line(row) for row in rows)])


def rich_output(stream: object) -> bool:
    """A terminal that can do more than print, and rich to do it with (extra `cli`)."""
    terminal = getattr(stream, "isatty", lambda: False)() and os.environ.get("TERM") != "dumb"
    return terminal and find_spec("rich") is not None


def _rich_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[str]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in head:
        drawn.add_column(Text(name), justify="left" if name in left else "right")
    for row in rows:
        drawn.add_row(*map(Text, row))
    console = Console()
    with console.capture() as shown:
        console.print(drawn)
    return shown.get().strip("\n").rstrip()


@contextmanager
def progress(title: str) -> Iterator[Callable[..., None]]:
    """A bar on the terminal with what is being done; nothing when stderr is a pipe.

    It gives a function of a text and the share that is done, which is left out where nobody knows.
    """
    if not rich_output(sys.stderr):
        yield lambda text, share=None: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task(title, total=None)

        def tick(text: str, share: float | None = None) -> None:
            shown.update(
                bar, description=f"{title}: {escape(text)}", total=None if share is None else 1, completed=share
            )

        yield tick


def one_line(run: Callable[[], object]) -> int:
    """Run it. What users can mend is one line and exit code 2; Ctrl-C is exit code 130."""
    try:
        run()
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return _tell(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package)
        if extra is None:
            raise
        return _tell(f"this needs {package}: pip install 'divevlm[{extra}]'")
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which takes a second to import
            raise
        return _tell(str(error))
    except KeyboardInterrupt:
        print("divevlm: interrupted", file=sys.stderr)
        return 130
    return 0


def _tell(message: str) -> int:
    print(f"divevlm: {' '.join(message.split())}", file=sys.stderr)
    return 2
