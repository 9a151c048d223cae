"""Files of the UCR/UEA archive (.ts): one case per line, dimensions separated by colons, the target last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.frames import read_lines, scan_rows

SUFFIXES = (".ts",)
STAMPED = re.compile(r"\(([^,()]+),([^()]+)\)")


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Scan a file with columns series, times (if it has time stamps) and label or value."""
    head = _read_head(path)
    schema: dict[str, Any] = {"series": pl.List(pl.List(pl.Float64))}
    if head.get("timestamps") == "true":
        schema["times"] = pl.List(pl.Float64)
    if head.get("classlabel", "false").startswith("true"):
        schema["label"] = pl.String
    elif head.get("targetlabel", "false").startswith("true"):
        schema["value"] = pl.Float64
    return scan_rows(lambda: _read_cases(path, schema), schema)


def _read_head(path: Path) -> dict[str, str]:
    """Return the values of the lines that start with @, by name in lower case."""
    head: dict[str, str] = {}
    for _, text in read_lines(path):
        line = text.strip()
        if line.lower() == "@data":
            return head
        if line.startswith("@"):
            name, _, value = line[1:].partition(" ")
            head[name.lower()] = value.strip().lower()
    raise UserError(f"{path}: no line @data; give a .ts file of the UCR/UEA archive")


def _read_cases(path: Path, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    is_data = False
    for number, text in read_lines(path):
        line = text.strip()
        if is_data and line and not line.startswith("#"):
            try:
                yield _parse_case(line, schema)
            except ValueError as error:
                raise UserError(f"{path}: line {number}: {error}") from None
        is_data = is_data or line.lower() == "@data"


def _parse_case(line: str, schema: dict[str, Any]) -> dict[str, Any]:
    parts = line.split(":")
    row: dict[str, Any] = {}
    if "label" in schema or "value" in schema:
        last = parts.pop().strip()
        row |= {"label": last} if "label" in schema else {"value": float(last)}
    if "times" in schema:
        pairs = [STAMPED.findall(part) for part in parts]
        row["times"] = [float(t) for t, _ in pairs[0]]
        rows = [[_parse_value(v) for _, v in pair] for pair in pairs]
    else:
        rows = [[_parse_value(v) for v in part.split(",")] for part in parts]
    if len({len(r) for r in rows}) > 1:
        raise UserError(f"dimensions of different lengths ({', '.join(str(len(r)) for r in rows)}); pad them with ?")
    return row | {"series": [list(step) for step in zip(*rows, strict=True)]}


def _parse_value(text: str) -> float | None:
    text = text.strip()
    return None if text in ("?", "NaN", "nan", "") else float(text)
