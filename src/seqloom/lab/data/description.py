"""Describe a task as lines of text or as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.console import wrap, write_as_flags
from seqloom.lab.data.pipeline.columns import describe_columns
from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.registry import open_data
from seqloom.lab.data.task import SPECIALS, Column, Input, Notes, Target, Task, Tokens
from seqloom.lab.kinds.forms import FORMS

MAX_NAMES = 12  # class and feature names that are listed
MOST_COLUMNS = 40  # columns that are all listed
SHORTEST_RUN = 4  # similar columns that are always listed


def open_or_print_columns(data: str, options: Mapping[str, Any]) -> Task:
    """Open a task; if the file allows several or none, print its columns before the error is raised."""
    try:
        return open_data(data, options)[0]
    except UserError:
        if Path(data).exists() and (columns := _read_columns(data, options)):
            print("\n".join(_format_columns(columns)))
        raise


def _read_columns(data: str, options: Mapping[str, Any]) -> list[Column]:
    try:
        return describe_columns(read_source(data, make_reading(**options), Notes()))
    except UserError:  # the caller raises the error that says more
        return []


def describe_task(task: Task, width: int | None = None) -> list[str]:
    """Format columns, kind, splits and notes of a task as lines of text; `width` wraps all but the columns."""
    columns = _format_columns(task.columns) if task.columns else []
    summary = summarize_task(task)
    return [*columns, *([""] if columns else []), *(summary if width is None else [wrap(s, width) for s in summary])]


def summarize_task(task: Task) -> list[str]:
    """Format kind, splits and notes of a task as lines of text."""
    kind = f"task    {task.name}: {task.kind}, {format_space(task.input)} -> {format_space(task.target)}"
    sizes = {name: "endless" if split.size is None else f"{split.size:,}" for name, split in task.splits.items()}
    splits = "splits  " + ", ".join(f"{name} {size}" for name, size in sizes.items())
    splits += " windows" if FORMS[task.kind].target == "series" else ""
    return [kind, splits, *format_notes(task)]


def format_notes(task: Task) -> list[str]:
    """Format the notes of a task as lines of text; options appear as command-line flags."""
    return [f"{'warning' if note.warning else 'note':8}{write_as_flags(note.text)}" for note in task.notes]


def tabulate_columns(columns: Sequence[Column]) -> list[dict[str, str | int]]:
    """Arrange columns as the rows of a table, by heading."""
    return [
        {
            "column": column.name,
            "type": column.role,
            "used as": column.use or "-",
            "distinct": column.distinct - (column.missing > 0),  # a missing value is not one of them
            "missing": column.missing,
            "example": column.example,
        }
        for column in columns
    ]


def _format_columns(columns: Sequence[Column]) -> list[str]:
    """Format columns as an aligned table; the example, which comes last, is not padded.

    If there are more than MOST_COLUMNS, consecutive columns of one type and use are shown as the first, a line for
    those between, and the last.
    """
    table = tabulate_columns(columns)
    if len(table) > MOST_COLUMNS:
        runs = [list(run) for _, run in groupby(table, lambda row: (row["type"], row["used as"]))]
        table = [row for run in runs for row in (run if len(run) <= SHORTEST_RUN else _shorten(run))]
    rows = [list(table[0]), *([str(value) for value in row.values()] for row in table)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in rows]


def _shorten(run: list[dict[str, str | int]]) -> list[dict[str, str | int]]:
    """Return the first and the last of similar columns, and a line for those between them."""
    hidden = run[1:-1]
    missing = sum(int(row["missing"]) for row in hidden)
    line = dict(run[0], column=f"... {len(hidden):,} more", distinct="", missing=missing, example="(--json lists them)")
    return [run[0], line, run[-1]]


def format_space(space: Input | Target) -> str:
    """Describe an input or a target in a few words."""
    attributes = getattr(space, "attributes", ())
    if attributes:
        more = " ..." if len(attributes) > MAX_NAMES else ""
        return f"{format_space(replace(space, attributes=()))} + {', '.join(attributes[:MAX_NAMES])}{more}"  # type: ignore[arg-type]
    if isinstance(space, Tokens):
        return f"{space.unit} ({space.size - len(SPECIALS):,} distinct)"
    names = ", ".join(space.names[:MAX_NAMES]) + (" ..." if space.size > MAX_NAMES else "")
    if plural := getattr(space, "plural", ""):
        return f"{space.size} {plural}: {names}"
    steps = getattr(space, "steps", 1)
    return f"{names}, {steps} steps" if steps > 1 else names


def make_document(task: Task) -> dict[str, Any]:
    """Describe a task as a JSON document."""
    return {
        "task": task.name,
        "kind": task.kind,
        "uses": {column.name: column.use for column in task.columns if column.use} if task.columns else None,
        "columns": tabulate_columns(task.columns),
        "input": {"is": type(task.input).__name__.lower(), **asdict(task.input)},
        "target": {"is": type(task.target).__name__.lower(), **asdict(task.target)},
        "splits": {name: asdict(split) for name, split in task.splits.items()},
        "notes": [asdict(note) for note in task.notes],
    }
