"""CSV and TSV."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.tasks.readers.blocks import blocks
from seqloom.tasks.readers.generated import framed, utf8
from seqloom.tasks.reading import Reading

SUFFIXES = (".csv", ".tsv", ".tab")
MISSING = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "-", "")  # in a column of numbers
SAMPLE = 10_000  # rows from which types are guessed; the whole file where that goes wrong


def scan(path: Path, options: Reading, sample: int | None = SAMPLE) -> pl.LazyFrame:
    """Types are guessed from `sample` rows; None looks at all of them."""
    names = header(path, options)
    guess = _scan(path, names, sample)
    schema = guess.collect_schema()
    numbers = _numbers(guess if sample is None else guess.head(sample), schema)
    quoted = path.suffix == ".csv"
    common: dict[str, Any] = {"separator": separator(path), "quote_char": '"' if quoted else None, "schema": schema}

    def frames() -> Iterator[pl.DataFrame]:
        first = names is None
        for block in blocks(path, quoted):
            frame = pl.read_csv(block, has_header=first, **common)
            yield frame.with_columns(pl.col(name).replace(MISSING, None).cast(pl.Float64) for name in numbers)
            first = False

    return framed(frames, dict(schema) | dict.fromkeys(numbers, pl.Float64))


def _scan(path: Path, names: list[str] | None, sample: int | None) -> pl.LazyFrame:
    return pl.scan_csv(
        path,
        separator=separator(path),
        quote_char='"' if path.suffix == ".csv" else None,
        has_header=names is None,
        new_columns=names,
        infer_schema_length=sample,
    )


def _numbers(guess: pl.LazyFrame, schema: pl.Schema) -> list[str]:
    """Text columns that hold nothing but numbers and signs for a missing one."""
    texts = [name for name, kind in schema.items() if kind == pl.String]
    found = guess.select(
        *(pl.col(name).cast(pl.Float64, strict=False).is_not_null().any().alias(f"some {name}") for name in texts),
        *(_plain(name).all().alias(f"all {name}") for name in texts),
    )
    told = found.collect(engine="streaming").row(0, named=True) if texts else {}
    return [name for name in texts if told[f"some {name}"] and told[f"all {name}"]]


def _plain(name: str) -> pl.Expr:
    text = pl.col(name)
    return text.is_null() | text.is_in(MISSING) | text.cast(pl.Float64, strict=False).is_not_null()


def verify(frame: pl.LazyFrame, path: Path, options: Reading) -> None:
    """polars fills a short row with nulls and says nothing: look closer where the last field is null."""
    if frame.select(pl.last().is_null().any()).collect().item():
        diagnose(path, options)


def separator(path: Path) -> str:
    return "," if path.suffix == ".csv" else "\t"


def header(path: Path, options: Reading) -> list[str] | None:
    """None where the first line names the columns; made-up names where it is data."""
    with path.open("rb") as file:
        line = file.readline()
        while line and not line.strip():
            line = file.readline()
    if not line:
        raise ValueError(f"{path}: the file is empty")
    first = next(csv.reader([utf8(line, path, 1).lstrip("\ufeff")], delimiter=separator(path)))
    data = any(_is_number(field) for field in first) if options.header is None else not options.header
    if data:
        return [f"column_{i + 1}" for i in range(len(first))]
    twice = [name for name, count in Counter(first).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: two columns are named {twice[0]!r}; rename one (or header=False if it is data)")
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def diagnose(path: Path, options: Reading) -> None:
    """Find the first line with another number of fields, or with bytes that are not UTF-8."""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        quoting: Any = csv.QUOTE_MINIMAL if path.suffix == ".csv" else csv.QUOTE_NONE
        reader = csv.reader(file, delimiter=separator(path), quoting=quoting)
        csv.field_size_limit(1 << 30)
        width = len(next(reader))
        for fields in reader:
            place = f"{path}: line {reader.line_num}"
            for field in fields:
                utf8(field.encode("utf-8", "surrogateescape"), path, reader.line_num)
            if fields and len(fields) != width:
                cure = "put fields that hold the separator in quotes" if len(fields) > width else "complete the row"
                raise ValueError(f"{place} has {len(fields)} fields, the first line has {width}; {cure}")
