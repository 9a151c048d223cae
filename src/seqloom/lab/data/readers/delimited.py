"""CSV and TSV files."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
# In a column of numbers.
MISSING = (*NO_VALUE, *map(str.upper, NO_VALUE), "NaN", "Null", "None", "?", "-", "--", ".", "")
DECIMAL_COMMA = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+$"
GERMAN_NUMBER = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?$"  # any number in a column with decimal commas
LIST = r"^\[(\s*|[-+\d.eE,\s\[\]]*\d[-+\d.eE,\s\[\]]*)\]$"
SAMPLE = 10_000  # rows from which types are inferred; if that fails, all rows are read
SEPARATORS = (",", ";", "\t", "|")  # separators of a .csv, the likeliest first
SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n")  # a first line by which Excel names the separator
BLANK_LINES = re.compile(rb"(?<=\n)(\r?\n)+")
HEAD_LINES, HEAD_BYTES = 100, 1 << 20  # beginning of a file from which separator and header are guessed
Rows = Sequence[Sequence[str]]
MOST_TITLES = 10  # rows with a title above the header


@dataclass(frozen=True)
class TableLayout:
    """The form of a table."""

    separator: str  # the separator between fields
    names: list[str]  # the names of the columns
    lines: int  # the number of lines before the first row
    start: int  # the byte at which the first row begins


def scan(path: Path, options: Reading, sample: int | None = SAMPLE) -> pl.LazyFrame:
    """Scan a file; types are inferred from `sample` rows, or from all with None."""
    layout = find_layout(path, options)
    if not any(block.strip() for block in read_blocks(path, start=layout.start)):
        return pl.LazyFrame(schema=dict.fromkeys(layout.names, pl.String))
    quote = '"' if _has_quotes(path) else None
    common: dict[str, Any] = {"has_header": False, "separator": layout.separator, "quote_char": quote}
    guess = pl.scan_csv(path, skip_lines=layout.lines, new_columns=layout.names, infer_schema_length=sample, **common)
    guessed = guess.collect_schema()  # True and TRUE are names: as a boolean, they would lose their spelling
    schema = pl.Schema({name: pl.String if kind == pl.Boolean else kind for name, kind in guessed.items()})
    guess = guess.with_columns(pl.col(pl.Boolean).cast(pl.String))
    some = guess if sample is None else guess.head(sample)
    texts = _replace_commas(some, [name for name, kind in schema.items() if kind == pl.String], layout.separator)
    numbers = _find_numbers(some, texts)
    lists = _find_lists(some, [name for name in texts if name not in numbers])

    def frames() -> Iterator[pl.DataFrame]:
        for block in read_blocks(path, _has_quotes(path), layout.start):
            frame = pl.read_csv(_drop_blank_lines(block) if len(schema) > 1 else block, schema=schema, **common)
            yield frame.with_columns(
                *(texts[name].replace(MISSING, None).cast(pl.Float64) for name in numbers),
                *(pl.col(name).str.json_decode(kind) for name, kind in lists.items()),
            )

    return scan_frames(frames, dict(schema) | dict.fromkeys(numbers, pl.Float64) | lists)


def _drop_blank_lines(block: bytes) -> bytes:
    """Remove blank lines outside quotes, which polars would read as rows of missing values."""
    if not (b"\n\n" in block or b"\n\r\n" in block or block[:1] in (b"\r", b"\n")):
        return block
    parts = block.lstrip(b"\r\n").split(b'"')
    parts[::2] = [BLANK_LINES.sub(b"", part) for part in parts[::2]]
    return b'"'.join(parts)


def _has_quotes(path: Path) -> bool:
    """Return whether fields may be in quotation marks, as in a .csv."""
    return path.suffix == ".csv"


def _replace_commas(guess: pl.LazyFrame, names: list[str], separator: str) -> dict[str, pl.Expr]:
    """Convert text columns of numbers, with 1.234,5 as 1234.5 unless the comma is the separator."""
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


def find_layout(path: Path, options: Reading) -> TableLayout:
    """Find the separator, the names of the columns and the first row of a table.

    Raises:
        UserError: If the file is empty, is not a text table, or has two columns with the same name.
    """
    lines = _read_head(path)
    head = next((i for i, line in enumerate(lines) if line.strip()), None)
    if head is None:
        raise UserError(f"{path}: the file is empty")
    if sign := SEPARATOR_LINE.match(lines[head]):
        head += 1
    elif options.header is None:
        head += _count_title_lines(lines[head:], path)
    separator = sign[1] if sign else _find_separator(lines[head:], path)
    first, *rows = _split_lines(lines[head:], separator, path) or [[]]
    if not first:
        raise UserError(f"{path}: the file is empty")
    if is_data(first, rows) if options.header is None else not options.header:
        names = [f"column_{i + 1}" for i in range(len(first))]
    else:
        names = first
        head += _count_lines(lines[head:], separator, path)
        while head < len(lines) and not lines[head].strip("\r\n"):
            head += 1
    _check_names(names, path)
    return TableLayout(
        separator, names, head, sum(len(line.encode("utf-8", "surrogateescape")) for line in lines[:head])
    )


def find_titles(path: Path, options: Reading) -> list[str]:
    """Return the titles above the header, which are left out."""
    if options.header is not None:
        return []
    lines = _read_head(path)
    return [line.strip(' ,;|\t\r\n"') for line in lines[: _count_title_lines(lines, path)] if line.strip(" ,;|\t\r\n")]


def _count_title_lines(lines: list[str], path: Path) -> int:
    """Return the number of lines above the header: rows with one text, where the table has several fields."""
    for separator in SEPARATORS if path.suffix == ".csv" else ("\t",):
        rows, start = [], 0  # those with a value, each with the number of its first line
        reader = _make_reader(lines, separator, path)
        try:
            for row in reader:
                rows += [(start, row)] if any(map(str.strip, row)) else []
                start = int(reader.line_num)
        except csv.Error:
            return 0
        if titles := count_titles([row for _, row in rows]):
            return rows[titles][0]
    return 0


def _check_names(names: list[str], path: Path) -> None:
    """Raise an error if two columns have the same name, or none."""
    cure = "or set header=False if the first line is data"
    for name in [name for name, times in Counter(names).items() if times > 1]:
        if name:
            raise UserError(f"{path}: two columns are named {name!r}; rename one, {cure}")
        one, other, *_ = (number for number, text in enumerate(names, 1) if not text)
        raise UserError(f"{path}: columns {one} and {other} have no name; name them, {cure}")


def _find_separator(lines: list[str], path: Path) -> str:
    """Return a tab, or for a .csv the first separator that divides all rows into the same number of fields."""
    if path.suffix != ".csv":
        return "\t"
    for separator in SEPARATORS:
        widths = [len(row) for row in _split_lines(lines, separator, path)]
        if widths and widths[0] > 1 and len(set(widths)) == 1:
            return separator
    return ","  # a table with an incomplete row, or of one column


def _read_head(path: Path) -> list[str]:
    """Read the first lines."""
    with path.open("rb") as file:
        raw = file.readlines(HEAD_BYTES)
    full = [i for i, line in enumerate(raw) if line.strip()][:HEAD_LINES]
    return [line.decode("utf-8", "surrogateescape") for line in raw[: full[-1] + 1 if full else 0]]


def _split_lines(lines: list[str], separator: str, path: Path) -> list[list[str]]:
    try:
        return [row for row in _make_reader(lines, separator, path) if row]
    except csv.Error:  # a carriage return within a line
        raise UserError(
            f"{path}: not a text table, or its lines end in carriage returns alone; save it as CSV in UTF-8"
        ) from None


def _make_reader(lines: Iterable[str], separator: str, path: Path, strict: bool = False) -> Any:  # noqa: ANN401  # csv's
    quoting: Any = csv.QUOTE_MINIMAL if _has_quotes(path) else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=separator, quoting=quoting, strict=strict)


def _count_lines(lines: list[str], separator: str, path: Path) -> int:
    """Return how many lines the header occupies: a quoted name may hold line ends."""
    reader = _make_reader(lines, separator, path)
    next(reader)
    used = int(reader.line_num)
    if lines[used - 1].endswith("\r\r\n"):
        raise UserError(f"{path}: its lines end in two carriage returns; save it as CSV in UTF-8")
    if used == len(lines):
        next(_check_quotes(_make_reader(lines, separator, path, strict=True), path, 0))
    return used


def diagnose(path: Path, options: Reading) -> None:
    """Raise an error for the first line with a wrong number of fields or quotation marks, or that is not UTF-8."""
    layout = find_layout(path, options)
    width, before = len(layout.names), layout.lines
    with path.open("rb") as raw:
        raw.seek(layout.start)
        lines: list[str] = []  # lines of the current row
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape", newline="")
        reader = _make_reader(_remember(text, lines), layout.separator, path, strict=True)
        for fields in _check_quotes(reader, path, layout.lines):
            if not fields:  # an empty line; there may be millions
                before += 1
                lines.clear()
                continue
            end = layout.lines + reader.line_num
            place, start, before = f"{path}: line {end}", before + 1, end
            for field in fields:
                decode_utf8(field.encode("utf-8", "surrogateescape"), path, end)
            if len(fields) != width:
                if before > start:
                    raise UserError(f"{path}: line {start} opens a quote that extends to line {before}; close it")
                cure = "put fields that hold the separator in quotes" if len(fields) > width else "complete the row"
                raise UserError(f"{place} has {count(len(fields), 'field')}, the first line has {width}; {cure}")
            if _has_quotes(path) and "".join(lines).count('"') % 2:
                raise UserError(
                    f"{place} has a quotation mark within a field; put the field in quotes and double the mark"
                )
            lines.clear()


def _remember(lines: Iterable[str], seen: list[str]) -> Iterator[str]:
    for line in lines:
        seen.append(line)
        yield line


def _check_quotes(reader: Any, path: Path, before: int) -> Iterator[list[str]]:  # noqa: ANN401  # csv's reader
    """Yield the rows of a csv reader; raise an error for an unclosed quote, or text after a closing quote."""
    start = before + 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            problem = "opens a quote that is not closed; close it"
            if "expected after" in str(error):
                problem = "has a closing quote that no separator follows; double quotation marks within a field"
            elif "line contains" in str(error) or "new-line" in str(error):
                problem = "holds a carriage return or a zero byte; remove it"
            raise UserError(f"{path}: line {start} {problem}") from None
        if fields is None:
            return
        yield fields
        start = before + reader.line_num + 1


def is_data(first: Sequence[str], rows: Rows) -> bool:
    """Return whether the first row is data and no header: a field is a number, or occurs again in its column.

    Rows that repeat the whole first row do not count.
    """
    values = [set(column) - {""} for column in zip(*(row for row in rows if row != first), strict=False)]
    return any(map(_is_number, first)) or any(field in seen for field, seen in zip(first, values, strict=False))


def count_titles(rows: Rows) -> int:
    """Return the number of rows with a single text above the header of a table with several fields.

    Args:
        rows: The first rows that have a value.
    """
    titles = next((i for i, row in enumerate(rows) if any(map(str.strip, row[1:]))), 0)
    if not 0 < titles <= MOST_TITLES or not all(row[0].strip() for row in rows[:titles]):
        return 0
    names, below = rows[titles], rows[titles + 1 :]
    is_header = all(map(str.strip, names)) and len(set(names)) == len(names) and not is_data(names, below)
    is_table = len(below) > 1 and all(len(row) == len(names) for row in below[:-1])  # the last may be cut
    return titles if is_header and is_table else 0


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".", 1))
    except ValueError:
        return False
    return True
