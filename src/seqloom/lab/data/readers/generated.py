"""A lazy frame over a Python generator, so that a file is read in pieces whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

from seqloom.core.errors import UserError

PIECE = 2_000  # rows


def framed(frames: Callable[[], Iterable[pl.DataFrame]], schema: dict[str, Any]) -> pl.LazyFrame:
    """`frames` is called for every pass over the data."""

    def source(columns: Any, predicate: Any, n_rows: int | None, size: int | None) -> Iterator[pl.DataFrame]:
        left = n_rows
        for frame in frames():
            some = frame if left is None else frame.head(left)
            left = None if left is None else left - len(some)
            some = some if predicate is None else some.filter(predicate)
            yield some if columns is None else some.select(columns)
            if left == 0:
                return

    return register_io_source(source, schema=schema)


def generated(rows: Callable[[], Iterable[dict[str, Any]]], schema: dict[str, Any], piece: int = PIECE) -> pl.LazyFrame:
    """The same for a generator of one dict a row."""
    return framed(lambda: (pl.DataFrame(some, schema=schema) for some in _pieces(rows(), piece)), schema)


def _pieces(rows: Iterable[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    piece = []
    for row in rows:
        piece.append(row)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


def utf8(data: bytes, path: object, line: int | None = None) -> str:
    """Decoded, or an error that says where."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = path if line is None else f"{path}: line {line}"
        bad = f"byte 0x{data[error.start]:02x} at position {error.start}"
        raise UserError(f"{place} is not UTF-8 ({bad}); save the file as UTF-8") from None
