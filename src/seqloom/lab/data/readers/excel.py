"""Excel and OpenDocument workbooks: the first sheet, another one by name, or those named train, valid and test."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError, require
from seqloom.core.plurals import list_some
from seqloom.core.suggest import suggest
from seqloom.lab.data.names import SPLITS
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.compression import check_size
from seqloom.lab.data.readers.delimited import count_titles

SUFFIXES = (".xlsx", ".xls", ".ods")
HEAD_ROWS = 100  # of a sheet, in which titles above the header are looked for
NO_NAME = "__UNNAMED__"  # begins the names that fastexcel gives to columns without one


def scan_sheets(path: Path, options: Reading) -> tuple[pl.LazyFrame, list[str]]:
    """Read a sheet of a workbook; if all sheets have names of splits, read all with a column `split`.

    Returns:
        The table, and the titles above its header, which are left out.
    """
    fastexcel = require("fastexcel", f"{path}: reading {path.suffix}", "excel")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_size(path, sum(member.file_size for member in archive.infolist()), options.unpacked_gib)
    try:
        book = fastexcel.read_excel(path)
        names = _choose_sheets(path, book.sheet_names, options.sheet)
        sheets = [_read_sheet(path, book, name, options.header) for name in names]
    except (fastexcel.FastExcelError, pl.exceptions.PolarsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path}: damaged, empty, or not {path.suffix[1:]} ({reason}); save it again") from None
    titles = [title for _, some in sheets for title in some]
    if len(names) == 1:
        return sheets[0][0].lazy(), titles
    frames = [sheet.with_columns(split=pl.lit(_split_of(name))) for name, (sheet, _) in zip(names, sheets, strict=True)]
    return pl.concat(frames, how="diagonal_relaxed").lazy(), titles


def _choose_sheets(path: Path, names: list[str], asked: str | None) -> list[str]:
    """Return the names of the sheets to read."""
    if asked is None:
        return names if len(names) > 1 and None not in map(_split_of, names) else names[:1]
    if asked in names:
        return [asked]
    if asked.isdecimal() and 0 < int(asked) <= len(names):
        return [names[int(asked) - 1]]
    hint = suggest(asked, names) or f"its sheets are {list_some(list(map(repr, names)))}"
    raise UserError(f"{path}: no sheet {asked!r}: {hint}")


def _split_of(name: str) -> str | None:
    return SPLITS.get(name.strip().lower())


def _read_sheet(path: Path, book: Any, name: str, header: bool | None) -> tuple[pl.DataFrame, list[str]]:  # noqa: ANN401  # of fastexcel
    """Return a sheet, and the titles above its header."""

    def read(**options: Any) -> pl.DataFrame:  # noqa: ANN401
        return pl.read_excel(path, sheet_name=name, engine="calamine", has_header=header is not False, **options)

    sheet = read()
    if header is not None or not any(column.startswith(NO_NAME) for column in sheet.columns):
        return sheet, []
    head = book.load_sheet(name, header_row=None, n_rows=HEAD_ROWS, dtypes="string").to_polars()
    rows = [(i, [text or "" for text in row]) for i, row in enumerate(head.iter_rows())]
    rows = [(i, row) for i, row in rows if any(map(str.strip, row))]
    count = count_titles([row for _, row in rows])
    titles = [row[0].strip() for _, row in rows[:count]]
    return (read(read_options={"header_row": rows[count][0]}), titles) if titles else (sheet, [])
