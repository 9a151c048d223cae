"""What a command prints: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PIPED_WIDTH = 400  # where stdout is no terminal, lines are as long as they need to be


def note(text: str) -> None:
    """One line for the person, not for the data."""
    print(text, file=sys.stderr, flush=True)


def error(text: str) -> None:
    """What went wrong, in one line whatever the text was."""
    note("seqloom: " + " ".join(text.split()))


def show_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def show_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same keys, which become the headings; numbers stand to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, heading in enumerate(rows[0]):
        numeric = any(isinstance(row[heading], int | float) for row in rows)
        # The first column names the row, so it is never folded.
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row.values()))
    out = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    with out.capture() as captured:
        out.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Two functions: one moves a bar on stderr and renames it, one tells of a finished part.

    On a terminal only the bar is seen; elsewhere only a line for each finished part.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    terminal = sys.stderr.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def finished(text: str) -> None:
        if not terminal:
            note(text)

    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not terminal) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda text: bar.update(task, advance=1, description=text), finished


@contextmanager
def working(text: str) -> Iterator[None]:
    """A sign of life on stderr while torch is loaded and cells are run."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
