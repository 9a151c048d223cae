"""Lazy frames over Python generators, so that files of any format and size are read in chunks."""

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


def decode_utf8(data: bytes, path: object, line: int | None = None) -> str:
    """Decode bytes; raise an error with the position of the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = path if line is None else f"{path}: line {line}"
        bad = f"byte 0x{data[error.start]:02x} at position {error.start}"
        raise UserError(f"{place} is not UTF-8 ({bad}); name its encoding with encoding=..., such as cp1252") from None
