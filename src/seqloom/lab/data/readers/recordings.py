"""A table that names WAV files beside it: a column of file names, and further columns such as a text for each."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from os.path import isfile
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import shorten
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers import delimited
from seqloom.lab.data.readers.audio import PIECE_ROWS, read_samples
from seqloom.lab.data.readers.frames import scan_rows

HEAD_BYTES = 1 << 16  # beginning of a table in which a name of a recording is looked for


def names_recordings(path: Path) -> bool:
    """Return whether one of the first two lines of a table has a field that ends in .wav."""
    if path.suffix not in delimited.SUFFIXES or not path.is_file():
        return False
    with path.open("rb") as file:
        lines = file.read(HEAD_BYTES).decode("utf-8", "replace").splitlines()[:2]
    return any(
        field.strip().lower().endswith(".wav")
        for separator in delimited.SEPARATORS
        for row in csv.reader(lines, delimiter=separator)
        for field in row
    )


def find_recordings(path: Path) -> list[Path]:
    """Return all WAV files in the folder of a table and below it."""
    return sorted(p for p in path.parent.rglob("*") if p.suffix.lower() == ".wav" and p.is_file())


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Scan a table with the recordings that it names: audio, rate, file and the other columns of the table."""
    table = delimited.scan(path, options).collect()
    texts = [name for name, kind in table.schema.items() if kind == pl.String]
    file = next((n for n in texts if table[n].drop_nulls().str.to_lowercase().str.ends_with(".wav").all()), None)
    if file is None:
        return table.lazy()
    table = table.rename({file: "file"})
    others = [name for name in table.columns if name not in ("file", "audio", "rate")]
    schema: dict[str, Any] = {"audio": pl.List(pl.Float32), "rate": pl.Int64, "file": pl.String}
    schema |= {name: table.schema[name] for name in others}
    return scan_rows(lambda: _read_rows(table.select("file", *others), path), schema, PIECE_ROWS)


def _read_rows(table: pl.DataFrame, path: Path) -> Iterator[dict[str, Any]]:
    by_name = {file.name: file for file in find_recordings(path)}
    for number, row in enumerate(table.iter_rows(named=True), 1):
        name = (row["file"] or "").replace("\\", "/")
        file = path.parent / name
        if not isfile(file):  # False for a name that is too long, where Path.is_file raises an error
            file = by_name.get(Path(name).name, file)
        if not isfile(file):
            shown = shorten(row["file"] or "")
            raise UserError(f"{path}: row {number} names {shown!r}, which is not in {path.parent} or below it")
        yield row | read_samples(file.read_bytes(), str(file))
