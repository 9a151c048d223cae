"""CSV and TSV."""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.blocks import blocks
from seqloom.lab.data.readers.generated import framed, utf8

csv.field_size_limit(1 << 30)  # a field may be a whole book
SUFFIXES = (".csv", ".tsv", ".tab")
MISSING = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "-", "")  # in a column of numbers
COMMA = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+$"  # a decimal one
POINTS = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?$"  # a number of a column that has such
LIST = r"^\[(\s*|[-+\d.eE,\s\[\]]*\d[-+\d.eE,\s\[\]]*)\]$"
SAMPLE = 10_000  # rows from which types are guessed; the whole file where that goes wrong
SEPARATORS = (",", ";", "\t", "|")  # of a .csv, the likeliest first
HEAD = 100, 1 << 20  # lines and bytes of the beginning from which the separator and the header are guessed


def scan(path: Path, options: Reading, sample: int | None = SAMPLE) -> pl.LazyFrame:
    """Types are guessed from `sample` rows; None looks at all of them."""
    names = header(path, options)
    guess = _scan(path, names, sample)
    schema = guess.collect_schema()
    cut = separator(path)
    some = guess if sample is None else guess.head(sample)
    texts = _texts(some, [name for name, kind in schema.items() if kind == pl.String], cut)
    numbers = _numbers(some, texts)
    lists = _lists(some, [name for name in texts if name not in numbers])
    quoted = path.suffix == ".csv"
    common: dict[str, Any] = {"separator": cut, "quote_char": '"' if quoted else None, "schema": schema}

    def frames() -> Iterator[pl.DataFrame]:
        first = names is None
        for block in blocks(path, quoted):
            frame = pl.read_csv(block, has_header=first, **common)
            yield frame.with_columns(
                *(texts[name].replace(MISSING, None).cast(pl.Float64) for name in numbers),
                *(pl.col(name).str.json_decode(kind) for name, kind in lists.items()),
            )
            first = False

    return framed(frames, dict(schema) | dict.fromkeys(numbers, pl.Float64) | lists)


def _scan(path: Path, names: list[str] | None, sample: int | None) -> pl.LazyFrame:
    return pl.scan_csv(
        path,
        separator=separator(path),
        quote_char='"' if path.suffix == ".csv" else None,
        has_header=names is None,
        new_columns=names,
        infer_schema_length=sample,
    )


def _texts(guess: pl.LazyFrame, names: list[str], cut: str) -> dict[str, pl.Expr]:
    """Columns of text; 1.234,5 as 1234.5 where commas do not part fields, for one may be the decimal point then."""
    texts = {name: pl.col(name) for name in names}
    if cut == "," or not names:
        return texts
    found = guess.select(text.str.contains(COMMA).any() for text in texts.values()).collect(engine="streaming")
    for name in [name for name in names if found[name][0]]:
        point = texts[name].str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        texts[name] = pl.when(texts[name].str.contains(POINTS)).then(point).otherwise(texts[name]).alias(name)
    return texts


def _numbers(guess: pl.LazyFrame, texts: dict[str, pl.Expr]) -> list[str]:
    """Text columns that hold nothing but numbers and signs for a missing one."""
    number = {name: text.cast(pl.Float64, strict=False).is_not_null() for name, text in texts.items()}
    found = guess.select(
        *(number[name].any().alias(f"some {name}") for name in texts),
        *((pl.col(name).is_null() | pl.col(name).is_in(MISSING) | number[name]).all().alias(name) for name in texts),
    )
    told = found.collect(engine="streaming").row(0, named=True) if texts else {}
    return [name for name in texts if told[f"some {name}"] and told[name]]


def _lists(guess: pl.LazyFrame, names: list[str]) -> dict[str, Any]:
    """Text columns that hold nothing but lists of numbers, [0.5, 2] or [[1, 2], [3, 4]], as people save series."""
    if not names:
        return {}
    found = guess.select(
        *(pl.col(name).str.contains(LIST).all().alias(name) for name in names),
        *(pl.col(name).str.contains(r"^\[\s*\[").any().alias(f"deep {name}") for name in names),
    )
    told = found.collect(engine="streaming").row(0, named=True)
    flat = pl.List(pl.Float64)
    return {name: pl.List(flat) if told[f"deep {name}"] else flat for name in names if told[name]}


def verify(frame: pl.LazyFrame, path: Path, options: Reading) -> None:
    """polars fills a short row with nulls and says nothing: look closer where the last field is null."""
    if frame.select(pl.last().is_null().any()).collect().item():
        diagnose(path, options)


def separator(path: Path) -> str:
    """A tab, or of a .csv the first that cuts the line of names, and all lines after it alike."""
    if path.suffix != ".csv":
        return "\t"
    lines = _beginning(path)
    for one in SEPARATORS:
        widths = {len(row) for row in _fields(lines, one, path)}
        if one in lines[0] and (one == "," or len(widths) == 1):
            return one
    return ","


def _beginning(path: Path) -> list[str]:
    """The first lines that are not empty, whole ones only."""
    with path.open("rb") as file:
        raw = file.readlines(HEAD[1])[: HEAD[0]]
    lines = [line.decode("utf-8", "replace") for line in raw if line.strip()]
    if not lines:
        raise UserError(f"{path}: the file is empty")
    if raw[0][:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise UserError(f"{path}: the file is UTF-16; save it as UTF-8")
    return [lines[0].lstrip("\ufeff"), *lines[1:]]


def _fields(lines: list[str], cut: str, path: Path) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=cut) if row]
    except csv.Error:  # a carriage return inside a line
        told = "no table of text, or one whose lines end in carriage returns alone"
        raise UserError(f"{path}: the file is {told}; save it as CSV in UTF-8") from None


def header(path: Path, options: Reading) -> list[str] | None:
    """None where the first line names the columns; made-up names where it is data."""
    first, *rows = _fields(_beginning(path), separator(path), path)
    if _is_data(first, rows) if options.header is None else not options.header:
        return [f"column_{i + 1}" for i in range(len(first))]
    twice = [name for name, count in Counter(first).items() if count > 1]
    if twice:
        raise UserError(f"{path}: two columns are named {twice[0]!r}; rename one, or say that there is no header")
    return None


def _is_data(first: list[str], rows: list[list[str]]) -> bool:
    """A name is no number, and no value of its own column; a line of names may come again as a whole."""
    values = [set(column) - {""} for column in zip(*(row for row in rows if row != first), strict=False)]
    return any(map(_is_number, first)) or any(field in seen for field, seen in zip(first, values, strict=False))


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".", 1))
    except ValueError:
        return False
    return True


def diagnose(path: Path, options: Reading) -> None:
    """Find the first line with another number of fields, or with bytes that are not UTF-8."""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        quoting: Any = csv.QUOTE_MINIMAL if path.suffix == ".csv" else csv.QUOTE_NONE
        reader = csv.reader(file, delimiter=separator(path), quoting=quoting)
        width, before = len(next(reader)), reader.line_num
        for fields in reader:
            place, start, before = f"{path}: line {reader.line_num}", before + 1, reader.line_num
            for field in fields:
                utf8(field.encode("utf-8", "surrogateescape"), path, reader.line_num)
            if fields and len(fields) != width:
                if before > start:
                    raise UserError(f"{path}: line {start} opens a quote that goes on to line {before}; close it")
                cure = "put fields that hold the separator in quotes" if len(fields) > width else "complete the row"
                count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
                raise UserError(f"{place} has {count}, the first line has {width}; {cure}")
