"""Lazy frames over Python generators, so that files are read in chunks; objects as columns with dotted names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

from seqloom.core.errors import UserError

PIECE_ROWS = 2_000  # rows in memory at once
BLOCK_BYTES = 8 << 20  # part of a text file that is in memory at once


def scan_frames(frames: Callable[[], Iterable[pl.DataFrame]], schema: dict[str, Any]) -> pl.LazyFrame:
    """Create a lazy frame of consecutive frames; `frames` is called for every pass over the data."""

    def source(
        columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        for frame in frames():
            some = frame if left is None else frame.head(left)
            left = None if left is None else left - len(some)
            some = some if predicate is None else some.filter(predicate)
            yield some if columns is None else some.select(columns)
            if left == 0:
                return

    return register_io_source(source, schema=schema)


def scan_rows(
    rows: Callable[[], Iterable[dict[str, Any]]], schema: dict[str, Any], piece: int = PIECE_ROWS
) -> pl.LazyFrame:
    """Create a lazy frame of rows given as dicts; `rows` is called for every pass over the data."""

    def frames() -> Iterator[pl.DataFrame]:
        remaining = iter(rows())
        while some := list(islice(remaining, piece)):
            yield pl.DataFrame(some, schema=schema)

    return scan_frames(frames, schema)


def read_blocks(path: Path, quoted: bool = False, start: int = 0) -> Iterator[bytes]:
    """Yield blocks of a text file that end with a row, from the byte `start` to its end.

    With `quoted`, a line end between quotes does not end a row.
    """
    rest = b""
    with path.open("rb") as file:
        file.seek(start)
        while new := file.read(BLOCK_BYTES):
            data = rest + new
            end = data.rfind(b"\n") + 1
            while quoted and end and data.count(b'"', 0, end) % 2:
                end = data.rfind(b"\n", 0, end - 1) + 1
            if end:
                yield data[:end]
            rest = data[end:]
    if rest:
        yield rest


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            yield number, decode_utf8(raw, path, number)


def decode_utf8(data: bytes, path: object, line: int | None = None) -> str:
    """Decode bytes; raise an error with the position of the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = path if line is None else f"{path}: line {line}"
        bad = f"byte 0x{data[error.start]:02x} at position {error.start}"
        raise UserError(f"{place} is not UTF-8 ({bad}); name its encoding with encoding=..., such as cp1252") from None


def flatten(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Replace columns of objects, and of lists of objects, with one column for each field."""
    while True:
        schema = frame.collect_schema()
        columns = [column for name, kind in schema.items() for column in _list_fields(name, kind)]
        if len(columns) == len(schema) and not any(_get_fields(kind) for kind in schema.values()):
            return frame
        frame = frame.select(columns)


def _get_fields(kind: Any) -> list[pl.Field]:  # noqa: ANN401  # a type of polars, or an instance of it
    inner = kind.inner if isinstance(kind, pl.List) else kind
    return inner.fields if isinstance(inner, pl.Struct) else []


def _list_fields(name: str, kind: pl.DataType) -> list[pl.Expr]:
    column, fields = pl.col(name), _get_fields(kind)
    if not fields:
        return [column]
    if isinstance(kind, pl.List):
        return [column.list.eval(pl.element().struct.field(f.name)).alias(f"{name}.{f.name}") for f in fields]
    return [column.struct.field(f.name).alias(f"{name}.{f.name}") for f in fields]


def cast_arrays(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Convert fixed-size arrays to lists: polars cannot read such arrays back from a file if the size is 0."""
    schema = frame.collect_schema()
    changed = {name: kind for name, kind in schema.items() if _make_lists(kind) != kind}
    return frame.with_columns(pl.col(name).cast(_make_lists(kind)) for name, kind in changed.items())


def _make_lists(kind: Any) -> Any:  # noqa: ANN401  # a type of polars
    return pl.List(_make_lists(kind.inner)) if isinstance(kind, (pl.Array, pl.List)) else kind
