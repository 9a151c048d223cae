"""Parquet and Arrow files."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Scan a Parquet file, or an Arrow file in the file or stream format."""
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    if path.suffix == ".parquet":
        return pl.scan_parquet(path)
    with path.open("rb") as file:
        is_stream = file.read(6) != b"ARROW1"
    if not is_stream:
        return pl.scan_ipc(path)
    try:
        return pl.read_ipc_stream(path).lazy()
    except OSError as error:
        if error.errno is not None:  # a failure of the disk, not of the format
            raise
        return diagnose(path, options)


def diagnose(path: Path, options: Reading) -> NoReturn:
    """Raise the error for a file that polars cannot read."""
    raise UserError(f"{path}: damaged, or not {path.suffix[1:]}; write it again")
