"""New inputs for a trained model, some rows at a time: from a file, a stream of lines, or Python values."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.task import Features, Task
from seqloom.lab.files import scratch

CHUNK = 256  # rows in memory at once
STDIN = "-"
LINES = (".txt", ".text")

Rows = Iterator[list[Any]]


def given_rows(task: Task, given: Any, chunk: int = CHUNK) -> Rows:
    """Rows for `task.encode`, `chunk` at a time, in order.

    `given` is a path of any format that training reads, a frame, or rows: inputs themselves, or dicts
    of columns. A text file has one input a line, unless one long text was trained on.
    """
    if type(given).__name__ == "DataFrame":  # to loop over one gives its columns
        return _named("the frame", task.read(given, chunk))
    if isinstance(given, Mapping):
        raise UserError(f"a dict of {', '.join(map(str, given))} is one row; give a list of rows, or a frame")
    if not isinstance(given, (str, Path)):
        return _pieces(given, chunk)
    path = Path(given)
    if not path.exists():
        raise UserError(f"{path}: no such file; give a file, or - for standard input")
    if not path.is_file() and not path.is_dir():  # a pipe would be waited for
        raise UserError(f"{path} is a pipe or a device; give its rows by standard input, with - in its place")
    if path.suffix in LINES and path.is_file():
        return _pieces(_file_lines(task, path), chunk)
    return _named(path, task.read(path, chunk))


def stdin_rows(task: Task, form: str | None = None, chunk: int = CHUNK) -> Rows:
    """Standard input: lines as they come; with a form such as "csv", a whole file of that format."""
    if form is None:
        # readline, not iteration, which would wait for a block
        lines = iter(sys.stdin.readline, "")
        return _pieces(_lines(task, lines, "standard input"), 1 if sys.stdin.isatty() else chunk)
    return _spooled(task, sys.stdin.buffer, form.removeprefix("."), chunk)


def _pieces(rows: Iterable[Any], chunk: int) -> Rows:
    rows = iter(rows)
    while piece := list(islice(rows, chunk)):
        yield piece


def _file_lines(task: Task, path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        try:
            yield from _lines(task, file, str(path))
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None


def _lines(task: Task, lines: Iterable[str], place: str) -> Iterator[Any]:
    """A line that starts with { or [ is JSON where that makes sense; else it is the text itself."""
    unit = getattr(task.input, "unit", "")
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if text.startswith("{") or isinstance(task.input, Features) or (unit == "tokens" and text.startswith("[")):
            try:
                yield json.loads(text)
            except ValueError as error:
                wanted = "a list of numbers" if isinstance(task.input, Features) else "the text itself"
                raise UserError(f"{place}: line {number} is not JSON ({error}); give an object or {wanted}") from None
        else:
            yield text.split() if unit == "tokens" else text


def _named(path: Path | str, pieces: Iterator[list[dict[str, Any]]]) -> Rows:
    """The same pieces; the first is fetched now, so that a bad file is known before anything is written."""
    first = next(pieces, None)
    if first is None:
        raise UserError(f"{path}: holds no rows")

    def rest() -> Rows:
        yield first
        yield from pieces

    return rest()


def _spooled(task: Task, stream: IO[bytes], form: str, chunk: int) -> Rows:
    with scratch.make_folder(cache.home() / "stdin") as folder:
        path = folder / f"stdin.{form}"
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file)
        yield from task.read(path, chunk)
