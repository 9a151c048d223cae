"""Parquet and Arrow files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from seqloom.tasks.reading import Reading

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    if path.suffix == ".parquet":
        return pl.scan_parquet(path)
    with path.open("rb") as file:
        streamed = file.read(6) != b"ARROW1"
    return pl.read_ipc_stream(path).lazy() if streamed else pl.scan_ipc(path)


def diagnose(path: Path, options: Reading) -> None:
    raise ValueError(f"{path}: damaged, or not {path.suffix[1:]}; write it again")
