"""Excel and OpenDocument workbooks: the first sheet, another one by name, or those named train, valid and test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import polars as pl

from seqloom.core.errors import UserError, require
from seqloom.core.plurals import list_some
from seqloom.core.suggest import suggest
from seqloom.lab.data.names import SPLITS
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.compression import check_size
from seqloom.lab.data.readers.header import count_titles

SUFFIXES = (".xlsx", ".xls", ".ods")


HEAD_ROWS = 100  # of a sheet, in which titles above the header are looked for


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Read a sheet of a workbook; if all sheets have names of splits, read all with a column `split`."""
    _check(path, options)
    try:
        names = _list_sheets(path, options)
        sheets = [
            pl.read_excel(
                path,
                sheet_name=name,
                engine="calamine",
                has_header=options.header is not False,
                read_options={} if options.header is False else {"header_row": _find_header(path, name, options)},
            )
            for name in names
        ]
    except _problems() as error:
        raise _refuse(path, error) from None
    if len(names) == 1:
        return sheets[0].lazy()
    frames = [sheet.with_columns(split=pl.lit(_split_of(name))) for name, sheet in zip(names, sheets, strict=True)]
    return pl.concat(frames, how="diagonal_relaxed").lazy()


def find_titles(path: Path, options: Reading) -> list[str]:
    """Return the titles above the header of the first sheet that is read, which are left out."""
    if options.header is not None:
        return []
    name = _list_sheets(path, options)[0]
    rows = _read_head(path, name)
    end = _find_header(path, name, options)
    return [row[0].strip() for row in rows[:end] if any(map(str.strip, row))]


def _check(path: Path, options: Reading) -> None:
    require("fastexcel", f"{path}: reading {path.suffix}", "excel")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_size(path, sum(member.file_size for member in archive.infolist()), options.unpacked_gib)


def _list_sheets(path: Path, options: Reading) -> list[str]:
    """Return the sheets to read."""
    import fastexcel

    names: list[str] = fastexcel.read_excel(path).sheet_names
    if options.sheet is not None:
        if options.sheet in names:
            return [options.sheet]
        if options.sheet.isdecimal() and 0 < int(options.sheet) <= len(names):
            return [names[int(options.sheet) - 1]]
        hint = suggest(options.sheet, names) or f"its sheets are {list_some(list(map(repr, names)))}"
        raise UserError(f"{path}: no sheet {options.sheet!r}: {hint}")
    return names if len(names) > 1 and None not in map(_split_of, names) else names[:1]


def _split_of(name: str) -> str | None:
    return SPLITS.get(name.strip().lower())


def _find_header(path: Path, name: str, options: Reading) -> int:
    """Return the row of a sheet that holds the names of the columns, counted from 0."""
    if options.header is not None:
        return 0
    rows = _read_head(path, name)
    real = [i for i, row in enumerate(rows) if any(map(str.strip, row))]
    titles = count_titles([rows[i] for i in real])
    return real[titles] if titles else 0


def _read_head(path: Path, name: str) -> list[list[str]]:
    """Return the first rows of a sheet as texts."""
    import fastexcel

    book = fastexcel.read_excel(path)
    frame = book.load_sheet(name, header_row=None, n_rows=HEAD_ROWS, dtypes="string").to_polars()
    return [[text or "" for text in row] for row in frame.iter_rows()]


def _problems() -> tuple[type[Exception], ...]:
    import fastexcel

    return fastexcel.FastExcelError, pl.exceptions.PolarsError


def _refuse(path: Path, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0]
    return UserError(f"{path}: damaged, empty, or not {path.suffix[1:]} ({reason}); save it again")
