"""Excel and OpenDocument workbooks: the first sheet, or sheets that are named train, valid and test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import polars as pl

from seqloom.core.errors import UserError, require
from seqloom.lab.data.names import SPLITS
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.compression import check_size

SUFFIXES = (".xlsx", ".xls", ".ods")


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Read the first sheet of a workbook; if all sheets have names of splits, read all with a column `split`."""
    fastexcel = require("fastexcel", f"{path}: reading {path.suffix}", "excel")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_size(path, sum(member.file_size for member in archive.infolist()), options.unpacked_gib)
    try:
        names = fastexcel.read_excel(path).sheet_names
        splits = {name: SPLITS.get(name.strip().lower()) for name in names}
        are_splits = len(names) > 1 and None not in splits.values()
        sheets = {
            name: pl.read_excel(path, sheet_name=name, engine="calamine", has_header=options.header is not False)
            for name in (names if are_splits else names[:1])
        }
    except (fastexcel.FastExcelError, pl.exceptions.PolarsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path}: damaged, empty, or not {path.suffix[1:]} ({reason}); save it again") from None
    if not are_splits:
        return next(iter(sheets.values())).lazy()
    frames = [sheet.with_columns(split=pl.lit(splits[name])) for name, sheet in sheets.items()]
    return pl.concat(frames, how="diagonal_relaxed").lazy()
