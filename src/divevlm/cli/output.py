"""Tables, progress and files: with rich on a terminal, plain text in a pipe."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    if rich_output(sys.stdout):
        return _rich_table(head, rows)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *(line(row) for row in rows)])


def rich_output(stream: object) -> bool:
    """A terminal that can do more than print, and rich to do it with (extra `cli`)."""
    terminal = getattr(stream, "isatty", lambda: False)() and os.environ.get("TERM") != "dumb"
    return terminal and find_spec("rich") is not None


def _rich_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, name in enumerate(head):
        padded = any(row[number].endswith(" ") for row in [head, *rows])  # a column that is filled up on the right
        drawn.add_column(Text(name.strip()), justify="left" if number == 0 or padded else "right")
    for row in rows:
        drawn.add_row(*(Text(cell.strip()) for cell in row))
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


def check_target(option: str, path: Path | None, kinds: Sequence[str] = ()) -> None:
    """Before the work: can the file be written there?"""
    if path is None:
        return
    if kinds and path.suffix.lower() not in kinds:
        raise ValueError(f"{option} must be a file that ends in {' or '.join(kinds)}, got {str(path)!r}")
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise ValueError(f"{option} must be a file in a folder that is there, got {str(path)!r}")
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        allowed = "a file in a folder that can be written to"
        raise ValueError(f"{option} must be {allowed}, got {str(path)!r}: {error.strerror}") from None


def check_picture(option: str, path: Path | None) -> None:
    """Before the work: can a picture be drawn there?"""
    check_target(option, path, (".png", ".svg"))
    if path is not None and find_spec("matplotlib") is None:
        raise ValueError(f"{option} needs matplotlib (pip install 'divevlm[plot]'), got {str(path)!r}")


def write(path: Path, content: str | bytes) -> None:
    """All of it or nothing: into a file beside it that then takes its name. A link stays one: its file is replaced."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".divevlm-")
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
