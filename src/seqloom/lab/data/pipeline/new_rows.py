"""New inputs for a trained model, some rows at a time: from files, standard input, frames or Python values."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import polars as pl

from seqloom.core.cache import cache_home
from seqloom.core.errors import UserError
from seqloom.core.plurals import count, shorten
from seqloom.core.state import make_private
from seqloom.core.suggest import suggest
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import StepSetCoder
from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.coders.table import AttributesCoder
from seqloom.lab.data.coders.text import JoinedTextCoder, TextCoder
from seqloom.lab.data.coders.times import TimesCoder
from seqloom.lab.data.pipeline.encoding import InputCoder
from seqloom.lab.data.task import DataSource, Features, Frame, Task, Tokens
from seqloom.lab.files import scratch
from seqloom.lab.kinds.forms import FORMS

CHUNK = 256  # rows in memory at once
STDIN = "-"
LINE_SUFFIXES = (".txt", ".text")

Rows = Iterator[list[Any]]


def iterate_rows(task: Task, data: DataSource | Iterable[Any]) -> Rows:
    """Yield rows for `task.encode`, some at a time, in order.

    Args:
        data: A path in any format that training reads, a frame, or rows: inputs themselves, or dicts of columns. A
            text file has one input per line, unless the model was trained on one long text.

    Raises:
        UserError: If the data do not exist, hold no rows or cannot be read.
    """
    if type(data).__name__ == "DataFrame":  # iterating over a frame would yield its columns
        return _read_ahead("the frame", task.read_rows(cast(Frame, data), CHUNK))
    if isinstance(data, Mapping):
        raise UserError(f"a dict of {', '.join(map(str, data))} is one row; give a list of rows, or a frame")
    if not isinstance(data, (str, Path)):
        return _chunk(data, CHUNK)
    path = Path(data)
    if not path.exists():
        raise UserError(f"{path}: no such file; give a file, or - for standard input")
    if not path.is_file() and not path.is_dir():  # reading a pipe would wait for its writer
        raise UserError(f"{path} is a pipe or a device; give its rows on standard input, with - in its place")
    if path.is_file() and (path.suffix in LINE_SUFFIXES or _is_side_of_pair(task, path)):
        return _chunk(_read_text_file(task, path), CHUNK)
    return _read_ahead(path, task.read_rows(path, CHUNK))


def _is_side_of_pair(task: Task, path: Path) -> bool:
    """Return whether a file such as new.de is text for a model that translates column "de", as of train.de,train.en."""
    if not FORMS[task.kind].is_translated or task.encoding is None:
        return False
    return path.suffix.removeprefix(".") in task.encoding.plan.input


def read_stdin_rows(task: Task, form: str | None) -> Rows:
    """Yield rows from standard input.

    Args:
        form: A format such as "csv", read as a whole file; None reads one input per line as lines arrive.
    """
    if form is None:
        lines = iter(sys.stdin.readline, "")  # iterating over stdin would wait for a block
        return _chunk(_parse_lines(task, lines, "standard input"), 1 if sys.stdin.isatty() else CHUNK)
    return _read_stream(task, sys.stdin.buffer, form.removeprefix("."))


def _chunk(rows: Iterable[Any], chunk: int) -> Rows:
    rows = iter(rows)
    while piece := list(islice(rows, chunk)):
        yield piece


def _read_text_file(task: Task, path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        try:
            yield from _parse_lines(task, file, str(path))
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None


def _parse_lines(task: Task, lines: Iterable[str], place: str) -> Iterator[Any]:
    """Yield one input per line: JSON for objects, features and lists of tokens, else the text itself."""
    unit = task.input.unit if isinstance(task.input, Tokens) else ""
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if text.startswith("{") or isinstance(task.input, Features) or (unit == "tokens" and text.startswith("[")):
            try:
                yield json.loads(text)
            except ValueError as error:
                expected = "a list of numbers" if isinstance(task.input, Features) else "the text itself"
                raise UserError(f"{place}: line {number} is not JSON ({error}); give an object or {expected}") from None
        else:
            yield text.split() if unit == "tokens" else text


def _read_ahead(path: Path | str, pieces: Iterator[list[dict[str, Any]]]) -> Rows:
    """Read the first chunk now, so that a bad file fails before anything is written, and return all chunks."""
    first = next(pieces, None)
    if first is None:
        raise UserError(f"{path}: holds no rows")

    def iterate() -> Rows:
        yield first
        yield from pieces

    return iterate()


def _read_stream(task: Task, stream: IO[bytes], form: str) -> Rows:
    """Copy a stream to a temporary file and yield its rows."""
    make_private(cache_home())
    with scratch.make_folder(cache_home() / "stdin") as folder:
        path = folder / f"stdin.{form}"
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file)
        yield from task.read_rows(path, CHUNK)


def make_frame(rows: Sequence[Any], coder: InputCoder, times: TimesCoder | None = None) -> pl.DataFrame:
    """Create a frame of the columns that a coder reads.

    Args:
        rows: Dicts of columns, or the inputs themselves.
        coder: The coder of x.
        times: The coder of time stamps, if there is one; its column is included if every row has it.
    """
    has_several = isinstance(coder, SeriesCoder | JoinedTextCoder)
    names = tuple(coder.columns) if has_several else (coder.column,)  # type: ignore[union-attr]
    records = [
        _open_objects(row, names) if isinstance(row, Mapping) else _name_columns(row, names, coder) for row in rows
    ]
    for number, row in enumerate(records, 1):
        for name in names:
            if name not in row:
                hint = suggest(name, row) or f"it has {', '.join(map(str, row))}"
                raise UserError(f"row {number}: no column {name!r}; {hint}")
    columns: dict[str, pl.Series] = {}
    for name in names:
        values = [_to_python(row[name]) for row in records]
        if isinstance(coder, TextCoder) and coder.unit == "tokens":
            values = [value.split() if isinstance(value, str) else value for value in values]
        dtype, expected = _expect(coder)
        try:
            columns[name] = pl.Series(name, values, dtype=dtype, strict=False)
        except (TypeError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"column {name!r}: {reason}; give {expected}, as in training") from None
        if isinstance(coder, SeriesCoder) and not coder.wide:
            columns[name] = _check_series(columns[name])
    if isinstance(coder, AudioCoder):
        columns["rate"] = pl.Series("rate", [int(row.get("rate", coder.rate)) for row in records])
    if times is not None and all(times.column in row for row in records):
        columns[times.column] = pl.Series(times.column, [list(row[times.column]) for row in records])
    return pl.DataFrame(columns)


def make_attributes_frame(rows: Sequence[Any], coder: AttributesCoder) -> pl.DataFrame:
    """Create a frame of the attributes of new rows; a missing value is null."""
    columns: dict[str, pl.Series] = {}
    for name in coder.columns:
        values = []
        for number, row in enumerate(rows, 1):
            record = _open_objects(row, (name,)) if isinstance(row, Mapping) else {}
            if name not in record:
                has = f"it has {', '.join(map(str, record))}" if record else "give rows with all input columns"
                raise UserError(f"row {number}: no column {name!r}; {has}")
            values.append(_to_python(record[name]))
        try:
            columns[name] = pl.Series(name, values).cast(coder.find_type(name))
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise UserError(f"column {name!r}: {str(error).splitlines()[0]}; give values as in training") from None
    return pl.DataFrame(columns)


def _open_objects(row: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Add the values of dotted names to a row: {"data": {"text": "a"}} has data.text."""
    inner = {}
    for name in [n for n in names if n not in row and "." in n]:
        value: Any = row
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            inner[name] = value
    return {**row, **inner} if inner else row


def _check_series(column: pl.Series) -> pl.Series:
    """Check that a column holds lists of numbers, or nothing at all, and return it."""
    inner: Any = column.dtype
    if inner == pl.Null:
        return column.cast(pl.List(pl.Float64))
    while isinstance(inner, (pl.List, pl.Array)):
        inner = inner.inner
    if column.dtype.is_nested() and (inner.is_numeric() or inner == pl.Null):
        return column
    value = next(repr(v.to_list() if isinstance(v, pl.Series) else v) for v in column if v is not None)
    raise UserError(f"column {column.name!r}: {value[:40]} is not a list of numbers; give lists, as in training")


def _name_columns(row: object, names: tuple[str, ...], coder: InputCoder) -> dict[str, Any]:
    if len(names) == 1:
        return {names[0]: row}
    steps: Any = _to_python(row)
    is_wide = isinstance(coder, SeriesCoder) and coder.wide
    if not isinstance(steps, Sequence) or not (is_wide or all(isinstance(step, Sequence) for step in steps)):
        raise UserError(f"a row must be a list of steps of {len(names)} numbers each, got {shorten(repr(steps))}")
    try:
        by_column = steps if is_wide else list(map(list, zip(*steps, strict=True)))
    except ValueError:
        raise UserError("the steps of a row must have the same number of values") from None
    if len(by_column) != len(names):
        raise UserError(
            f"a row has {count(len(by_column), 'number')}, training had {len(names)}: {', '.join(names[:8])}"
        )
    return dict(zip(names, by_column, strict=True))


def _to_python(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else value


def _expect(coder: InputCoder) -> tuple[Any, str]:
    """Return the polars type of the column that a coder reads, and a description of it."""
    if isinstance(coder, AudioCoder):
        return pl.List(pl.Float32), "numbers"
    if isinstance(coder, SeriesCoder):
        return (pl.Float64 if coder.wide else None), "numbers"
    if isinstance(coder, StepSetCoder):
        return pl.List(pl.List(pl.Int64)), "lists of lists of whole numbers"
    return (pl.List(pl.String), "lists of strings") if coder.unit == "tokens" else (pl.String, "text")
