"""JSON: one object per line, one list of objects, or an object with a list for each split."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.names import SPLITS
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.frames import flatten, read_blocks, read_lines, scan_frames

SUFFIXES = (".jsonl", ".ndjson", ".json")
SAMPLE = 10_000  # lines from which types are inferred; if that fails, all lines are read
# Escapes from left to right: a surrogate pair, half a pair, and any other, such as that of a backslash.
HALF = rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
ESCAPES = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(" + HALF + rb")|\\.", re.DOTALL)
WRAPPERS = ("data", "rows", "examples", "items", "records", "instances")  # names of a single list of rows


def scan(path: Path, options: Reading, sample: int | None = SAMPLE) -> pl.LazyFrame:
    """Scan a file; types are inferred from `sample` lines, or from all with None."""
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    _check_letters(path)
    with path.open("rb") as file:
        is_list = file.read(64).lstrip().startswith(b"[")
    if is_list:
        frame = pl.read_json(path, infer_schema_length=None).lazy()
    elif (document := _read_object(path)) is not None:
        frame = _make_frame(document, path).lazy()
    else:
        schema = pl.scan_ndjson(path, infer_schema_length=sample).collect_schema()
        frame = scan_frames(lambda: (pl.read_ndjson(block, schema=schema) for block in read_blocks(path)), dict(schema))
    return flatten(frame).with_columns(pl.col(pl.Boolean).cast(pl.String))  # true stays true


def _check_letters(path: Path) -> None:
    r"""Raise an error for one half of a surrogate pair, such as \ud800, which polars reads as a null byte."""
    line = 1
    for block in read_blocks(path):
        if re.search(HALF, block):
            half = next((escape for escape in ESCAPES.finditer(block) if escape[1]), None)
            if half is not None:
                line += block.count(b"\n", 0, half.start())
                raise UserError(f"{path}: line {line} has {half[1].decode()}, which is half a character; remove it")
        line += block.count(b"\n")


def _read_object(path: Path) -> dict[str, Any] | None:
    """Return the file's single object if its values are lists of rows; None if lines are rows."""
    with path.open("rb") as file:
        first = file.readline()
        is_single = not file.readline().strip()
    try:
        document = json.loads(first)
        if not is_single:
            return None
    except ValueError:  # the object extends over several lines, or the line is damaged
        try:
            document = json.loads(path.read_bytes())
        except ValueError:
            return None
    return document if isinstance(document, dict) and _list_parts(document) else None


def _list_parts(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the lists of rows in a document by name: those of its splits, or a single one with a usual name."""
    lists = {name: value for name, value in document.items() if isinstance(value, list) and value}
    lists = {name: rows for name, rows in lists.items() if all(isinstance(row, dict | list) for row in rows)}
    if any(name.lower() in SPLITS for name in lists):
        return lists
    return lists if len(lists) == 1 and next(iter(lists)).lower() in WRAPPERS else {}


def _make_frame(document: Mapping[str, Any], path: Path) -> pl.DataFrame:
    frames = []
    for name, rows in _list_parts(document).items():
        records = [row if isinstance(row, dict) else {f"column_{i + 1}": v for i, v in enumerate(row)} for row in rows]
        try:
            frame = pl.DataFrame(records, infer_schema_length=None)
        except (TypeError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path}: rows of {name!r} have different types ({reason}); make them equal") from None
        is_split = name.lower() in SPLITS or name.lower() not in WRAPPERS
        frames.append(frame.with_columns(split=pl.lit(SPLITS.get(name.lower(), name))) if is_split else frame)
    return pl.concat(frames, how="diagonal_relaxed")


def diagnose(path: Path, options: Reading) -> None:
    """Raise an error for the first line that is not a JSON object."""
    for number, line in read_lines(path):
        place, text = f"{path}: line {number}", line.strip()
        if not text:
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise UserError(f"{place} is not JSON: {error}; each line must be one object") from None
        if not isinstance(row, dict):
            raise UserError(f'{place} is not an object but {text[:40]!r}; write {{"column": value, ...}}')
