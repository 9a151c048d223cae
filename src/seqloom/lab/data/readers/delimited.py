"""CSV and TSV files."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.frames import decode_utf8, read_blocks, scan_frames

csv.field_size_limit(1 << 30)  # a field may be a whole book
SUFFIXES = (".csv", ".tsv", ".tab")
NO_VALUE = ("na", "n/a", "n.a.", "#n/a", "nan", "null", "none")
MISSING = (
    *NO_VALUE,
    *map(str.upper, NO_VALUE),
    "NaN",
    "Null",
    "None",
    "?",
    "-",
    "--",
    ".",
    "",
)  # in a column of numbers
DECIMAL_COMMA = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+$"
GERMAN_NUMBER = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?$"  # any number in a column with decimal commas
LIST = r"^\[(\s*|[-+\d.eE,\s\[\]]*\d[-+\d.eE,\s\[\]]*)\]$"
SAMPLE = 10_000  # rows from which types are inferred; if that fails, all rows are read
SEPARATORS = (",", ";", "\t", "|")  # of a .csv, the likeliest first
HEAD_LINES, HEAD_BYTES = 100, 1 << 20  # beginning of a file from which separator and header are guessed


def scan(path: Path, options: Reading, sample: int | None = SAMPLE) -> pl.LazyFrame:
    """Scan a file; types are inferred from `sample` rows, or from all with None."""
    names = _name_columns(path, options)
    guess = _scan_untyped(path, names, sample)
    guessed = guess.collect_schema()  # True and TRUE are names: as a boolean, they would lose their spelling
    schema = pl.Schema({name: pl.String if kind == pl.Boolean else kind for name, kind in guessed.items()})
    guess = guess.with_columns(pl.col(pl.Boolean).cast(pl.String))
    separator = _find_separator(path)
    some = guess if sample is None else guess.head(sample)
    texts = _replace_commas(some, [name for name, kind in schema.items() if kind == pl.String], separator)
    numbers = _find_numbers(some, texts)
    lists = _find_lists(some, [name for name in texts if name not in numbers])
    quoted = path.suffix == ".csv"
    common: dict[str, Any] = {"separator": separator, "quote_char": '"' if quoted else None, "schema": schema}

    def frames() -> Iterator[pl.DataFrame]:
        has_header = names is None
        for block in read_blocks(path, quoted):
            frame = pl.read_csv(block, has_header=has_header, **common)
            yield frame.with_columns(
                *(texts[name].replace(MISSING, None).cast(pl.Float64) for name in numbers),
                *(pl.col(name).str.json_decode(kind) for name, kind in lists.items()),
            )
            has_header = False

    return scan_frames(frames, dict(schema) | dict.fromkeys(numbers, pl.Float64) | lists)


def _scan_untyped(path: Path, names: list[str] | None, sample: int | None) -> pl.LazyFrame:
    return pl.scan_csv(
        path,
        separator=_find_separator(path),
        quote_char='"' if path.suffix == ".csv" else None,
        has_header=names is None,
        new_columns=names,
        infer_schema_length=sample,
    )


def _replace_commas(guess: pl.LazyFrame, names: list[str], separator: str) -> dict[str, pl.Expr]:
    """Return text columns by name, with 1.234,5 as 1234.5 unless the comma is the separator."""
    texts = {name: pl.col(name) for name in names}
    if separator == "," or not names:
        return texts
    has_commas = guess.select(text.str.contains(DECIMAL_COMMA).any() for text in texts.values())
    flags = has_commas.collect(engine="streaming")
    for name in [name for name in names if flags[name][0]]:
        point = texts[name].str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        is_number = texts[name].str.contains(GERMAN_NUMBER)
        texts[name] = pl.when(is_number).then(point).otherwise(texts[name]).alias(name)
    return texts


def _find_numbers(guess: pl.LazyFrame, texts: dict[str, pl.Expr]) -> list[str]:
    """List text columns that hold only numbers and marks for missing ones."""
    if not texts:
        return []
    is_number = {name: text.cast(pl.Float64, strict=False).is_not_null() for name, text in texts.items()}
    checks = guess.select(
        *(is_number[name].any().alias(f"some {name}") for name in texts),
        *((pl.col(name).is_null() | pl.col(name).is_in(MISSING) | is_number[name]).all().alias(name) for name in texts),
    )
    flags = checks.collect(engine="streaming").row(0, named=True)
    return [name for name in texts if flags[f"some {name}"] and flags[name]]


def _find_lists(guess: pl.LazyFrame, names: list[str]) -> dict[str, Any]:
    """Return the types of text columns that hold only lists of numbers, [0.5, 2] or [[1, 2], [3, 4]]."""
    if not names:
        return {}
    checks = guess.select(
        *((pl.col(name).str.contains(LIST).all() & pl.col(name).is_not_null().any()).alias(name) for name in names),
        *(pl.col(name).str.contains(r"^\[\s*\[").any().alias(f"deep {name}") for name in names),
    )
    flags = checks.collect(engine="streaming").row(0, named=True)
    flat = pl.List(pl.Float64)
    return {name: pl.List(flat) if flags[f"deep {name}"] else flat for name in names if flags[name]}


def verify(frame: pl.LazyFrame, path: Path, options: Reading) -> None:
    """Check the rows of a file if the last field is null in one of them: polars silently completes short rows."""
    if frame.select(pl.last().is_null().any()).collect().item():
        diagnose(path, options)


def _find_separator(path: Path) -> str:
    """Return a tab, or for a .csv the first separator that occurs in line one and gives all lines the same width."""
    if path.suffix != ".csv":
        return "\t"
    lines = _read_head(path)
    for separator in SEPARATORS:
        widths = {len(row) for row in _split_lines(lines, separator, path)}
        if separator in lines[0] and (separator == "," or len(widths) == 1):
            return separator
    return ","


def _read_head(path: Path) -> list[str]:
    """Read the first lines that are not empty."""
    with path.open("rb") as file:
        raw = file.readlines(HEAD_BYTES)[:HEAD_LINES]
    lines = [line.decode("utf-8", "replace") for line in raw if line.strip()]
    if not lines:
        raise UserError(f"{path}: the file is empty")
    return [lines[0].lstrip("\ufeff"), *lines[1:]]


def _split_lines(lines: list[str], separator: str, path: Path) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=separator) if row]
    except csv.Error:  # a carriage return within a line
        raise UserError(
            f"{path}: not a text table, or its lines end in carriage returns alone; save it as CSV in UTF-8"
        ) from None


def _name_columns(path: Path, options: Reading) -> list[str] | None:
    """Return names for the columns of a file without a header, or None if it has one."""
    first, *rows = _split_lines(_read_head(path), _find_separator(path), path)
    if _is_data(first, rows) if options.header is None else not options.header:
        return [f"column_{i + 1}" for i in range(len(first))]
    twice = [name for name, times in Counter(first).items() if times > 1]
    if twice:
        raise UserError(
            f"{path}: two columns are named {twice[0]!r}; rename one, or set header=False if the first line is data"
        )
    return None


def _is_data(first: list[str], rows: list[list[str]]) -> bool:
    """Whether the first line is data: a field is a number, or occurs again in its column (repeated headers aside)."""
    values = [set(column) - {""} for column in zip(*(row for row in rows if row != first), strict=False)]
    return any(map(_is_number, first)) or any(field in seen for field, seen in zip(first, values, strict=False))


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".", 1))
    except ValueError:
        return False
    return True


def diagnose(path: Path, options: Reading) -> None:
    """Raise an error for the first line with a different number of fields, or with bytes that are not UTF-8."""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        quoting: Any = csv.QUOTE_MINIMAL if path.suffix == ".csv" else csv.QUOTE_NONE
        reader = csv.reader(file, delimiter=_find_separator(path), quoting=quoting)
        width, before = len(next(reader)), reader.line_num
        for fields in reader:
            place, start, before = f"{path}: line {reader.line_num}", before + 1, reader.line_num
            for field in fields:
                decode_utf8(field.encode("utf-8", "surrogateescape"), path, reader.line_num)
            if fields and len(fields) != width:
                if before > start:
                    raise UserError(f"{path}: line {start} opens a quote that extends to line {before}; close it")
                cure = "put fields that hold the separator in quotes" if len(fields) > width else "complete the row"
                raise UserError(f"{place} has {count(len(fields), 'field')}, the first line has {width}; {cure}")
