"""Output of the commands: data on stdout, everything else on stderr."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PIPED_WIDTH = 400  # columns if stdout is not a terminal and COLUMNS is not set: every row stays on one line
FOLDED_WIDTH = 30  # columns; longer text folds into several lines before a table is split
GAP = 2  # columns between two columns of a table
PROSE_WIDTH = 80  # columns of prose if stdout is not a terminal and COLUMNS is not set
COMMAND = "seqloom "  # a line that starts so can be copied, and is never broken
LABEL = re.compile(r" *\S+ {2,}|warning |")  # "note    " before a text, which continues below its first letter
UNBREAKABLE = re.compile(r"`[^`\n]*`|--[\w-]+ [\d.]+")  # commands and flags inside a sentence
NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+%?")  # a number as text, right-aligned in a table
OPTION = re.compile(r"\b(\w+)=\.\.\.")
OPTION_OFF = re.compile(r"\b(\w+)=False\b")
OPTION_ON = re.compile(r"\b(\w+)=True\b")
OPTION_WITH_VALUE = re.compile(r"\b(input|target|kind|group|time|split|borders)=(?=\w)")

PLAIN_REASONS = (  # pydantic's words and ours
    (r"^Input should be ", "must be "),
    (r"a valid integer.*", "a whole number"),
    (r"a valid number.*", "a number"),
    (r"greater than or equal to", "at least"),
    (r"less than or equal to", "at most"),
)


def note(text: str) -> None:
    """Print one line on stderr."""
    print(text, file=sys.stderr, flush=True)


def report_error(text: str) -> None:
    """Print an error on stderr, on one line."""
    note("seqloom: " + " ".join(text.split()))


def write_as_flags(text: str) -> str:
    """Rewrite Python options as flags: rows=... becomes --rows, input=a --input a, x=True --x, x=False --no-x."""
    text = OPTION_OFF.sub(lambda m: "--no-" + m[1].replace("_", "-"), text)
    text = OPTION_ON.sub(lambda m: "--" + m[1].replace("_", "-"), text)
    return OPTION_WITH_VALUE.sub(r"--\1 ", OPTION.sub(lambda m: "--" + m[1].replace("_", "-"), text))


def format_flags(options: Mapping[str, Any]) -> list[str]:
    """Return options as the words of a command line: target="a" as --target a, x=False as --no-x."""
    flags: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        else:
            flags += [flag, ",".join(value) if isinstance(value, list | tuple) else str(value)]
    return flags


def describe_invalid(name: str, message: str) -> str:
    """Say what is wrong with a setting: "--seeds must be at least 1".

    Args:
        name: The setting or its flag; "" for all settings together.
        message: Pydantic's message.
    """
    reason = message.removeprefix("Value error, ")
    for pattern, words in PLAIN_REASONS:
        reason = re.sub(pattern, words, reason)
    separator = "" if not name else " " if reason.startswith("must be ") else ": "
    return f"{name}{separator}{reason}"


def format_seconds(seconds: float) -> str:
    """Format a duration as 90s, 10m or 2h."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= 2 * size or seconds == size:
            return f"{round(seconds / size, 1):g}{unit}"
    return f"{seconds:.2g}s" if seconds < 10 else f"{seconds:.0f}s"


def text_width() -> int:
    """Return the columns that prose may use: those of the terminal or of COLUMNS."""
    return shutil.get_terminal_size((PROSE_WIDTH, 24)).columns


def wrap(text: str, width: int) -> str:
    """Break the lines of a text that are longer than `width`.

    A line with a label ("note    ...") continues below its text. Commands, flags with their values and long words
    stay whole.
    """
    return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    if len(line) <= width or line.startswith(COMMAND):
        return line
    label = LABEL.match(line)
    indent = " " * label.end() if label and label.end() < width // 2 else ""
    # NUL is no space for textwrap, so it holds a unit together.
    glued = indent + UNBREAKABLE.sub(lambda unit: unit[0].replace(" ", "\0"), line[len(indent) :])
    lines = textwrap.wrap(
        glued, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, expand_tabs=False
    )
    return (line[: len(indent)] + "\n".join(lines)[len(indent) :]).replace("\0", " ")


def show_text(text: str) -> None:
    """Print prose on stdout, wrapped to the terminal."""
    print(wrap(text, text_width()))


def show_json(document: object) -> None:
    """Print a document as indented JSON; NaN and infinity are refused."""
    print(json.dumps(document, indent=2, allow_nan=False))


def show_table(rows: Sequence[Mapping[str, Any]], optional: Sequence[str] = ()) -> None:
    """Print rows as a table with their keys as headings and numbers right-aligned.

    A table that is wider than the terminal wraps its long texts; if that is not enough, it omits optional columns, with
    a note on stderr, and continues below, repeating the columns that identify a row.

    Args:
        rows: The rows, all with the same keys.
        optional: Columns that may be left out, the least important first.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    out = Console(width=PIPED_WIDTH if piped else None)
    cells = {heading: [_text(row[heading]) for row in rows] for heading in rows[0]}
    first = next(iter(cells))
    left_out = []
    for heading in optional:
        if len(_split_columns(cells, out.width)) > 1:
            del cells[heading]
            left_out.append(heading)
    for number, headings in enumerate(_split_columns(cells, out.width)):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        for heading in headings:
            numeric = heading != first and _is_numeric([row[heading] for row in rows])
            foldable = heading != headings[0] and max(map(len, cells[heading])) > FOLDED_WIDTH
            table.add_column(heading, justify="right" if numeric else "left", no_wrap=not foldable)
        for row in zip(*(cells[heading] for heading in headings), strict=True):
            table.add_row(*map(Text, row))
        with out.capture() as captured:
            out.print(table)
        print("\n" * (number > 0) + "\n".join(line.rstrip() for line in captured.get().splitlines()))
    if left_out:
        note(f"left out, since the terminal is narrow: {', '.join(left_out)}; --json has every column")


def _is_numeric(values: Sequence[Any]) -> bool:
    """Return whether a column has numbers, or formatted numbers only."""
    texts = [value for value in values if value is not None]
    is_formatted = [isinstance(value, str) and bool(NUMBER.fullmatch(value)) for value in texts]
    return any(isinstance(value, int | float) for value in texts) or (bool(texts) and all(is_formatted))


def _split_columns(cells: Mapping[str, Sequence[str]], width: int) -> list[list[str]]:
    """Group the headings into tables that fit the width, each starting with the headings that identify a row."""
    widths = {
        heading: max(len(heading), *(min(len(text), FOLDED_WIDTH) for text in texts))
        for heading, texts in cells.items()
    }
    first = next(iter(cells))
    widths[first] = max(len(first), *map(len, cells[first]))  # names the row, so it never folds
    keys = _find_keys(cells)
    if sum(widths[key] + GAP for key in keys) > width // 2:
        keys = [first]
    tables = [[first]]
    for heading in list(cells)[1:]:
        used = sum(widths[one] + GAP for one in tables[-1])
        if used + widths[heading] > width and len(tables[-1]) > len(keys):
            tables.append([*keys])
        if heading not in tables[-1]:
            tables[-1].append(heading)
    return tables


def _find_keys(cells: Mapping[str, Sequence[str]]) -> list[str]:
    """List the first headings whose values together differ in as many rows as possible."""
    keys: list[str] = []
    distinct = 0
    for heading in cells:
        rows = set(zip(*(cells[key] for key in [*keys, heading]), strict=True))
        if len(rows) > distinct:
            keys.append(heading)
            distinct = len(rows)
    return keys


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def show_progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Show progress: a bar in a notebook or on a terminal, one line on stderr per finished part elsewhere.

    Yields:
        `advance(label)` moves the bar and renames it; `report(line)` prints the line of a finished part.
    """
    if is_notebook():
        yield _show_notebook_bar(total), lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    terminal = sys.stderr.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def report(text: str) -> None:
        if not terminal:
            note(text)

    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not terminal) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda text: bar.update(task, advance=1, description=text), report


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _show_notebook_bar(total: int) -> Callable[[str], None]:
    """Show a progress bar below the cell of a notebook; return functions that move and rename it."""
    from IPython.display import HTML, display

    done = 0

    def draw(label: str) -> HTML:
        bar = f'<progress value="{done}" max="{total}"></progress>'
        return HTML(f"{bar} {done} of {total}&ensp;{html.escape(label)}")

    handle = display(draw("starting"), display_id=True)

    def advance(label: str) -> None:
        nonlocal done
        done += 1
        handle.update(draw(label))

    return advance


@contextmanager
def show_status(text: str) -> Iterator[None]:
    """Show a spinner on stderr while the block runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
