"""JSON: one object per line, or one list of objects."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.frames import decode_utf8, read_blocks, scan_frames

SUFFIXES = (".jsonl", ".ndjson", ".json")
SAMPLE = 10_000  # lines from which types are inferred; if that fails, all lines are read


def scan(path: Path, options: Reading, sample: int | None = SAMPLE) -> pl.LazyFrame:
    """Scan a file; types are inferred from `sample` lines, or from all with None."""
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    with path.open("rb") as file:
        is_list = file.read(64).lstrip().startswith(b"[")
    if is_list:
        return pl.read_json(path, infer_schema_length=None).lazy()
    schema = pl.scan_ndjson(path, infer_schema_length=sample).collect_schema()
    return scan_frames(lambda: (pl.read_ndjson(block, schema=schema) for block in read_blocks(path)), dict(schema))


def diagnose(path: Path, options: Reading) -> None:
    """Raise an error for the first line that is not a JSON object."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{path}: line {number}"
            text = decode_utf8(line, path, number).strip()
            if not text:
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                raise UserError(f"{place} is not JSON: {error}; each line must be one object") from None
            if not isinstance(row, dict):
                raise UserError(f'{place} is not an object but {text[:40]!r}; write {{"column": value, ...}}')
