"""Rows for prediction: from Python values, or from a file some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.pipeline.row_filter import joined
from seqloom.lab.data.pipeline.saved import Saved
from seqloom.lab.data.pipeline.source import source
from seqloom.lab.data.task import Notes


def frame_of(rows: Sequence[Any], coder: Any, times: Any = None) -> pl.DataFrame:
    """The columns that the coder reads. A row is a dict of columns, or the input itself."""
    names = tuple(coder.columns) if isinstance(coder, SeriesCoder) else (coder.column,)
    records = [row if isinstance(row, Mapping) else _named(row, names, coder) for row in rows]
    for number, row in enumerate(records, 1):
        for name in names:
            if name not in row:
                hint = suggest(name, row) or f"it has {', '.join(map(str, row))}"
                raise UserError(f"row {number}: no column {name!r}; {hint}")
    columns: dict[str, pl.Series] = {}
    for name in names:
        values = [_plain(row[name]) for row in records]
        if getattr(coder, "unit", "") == "tokens":
            values = [value.split() if isinstance(value, str) else value for value in values]
        try:
            columns[name] = pl.Series(name, values, dtype=_dtype(coder), strict=False)
        except (TypeError, pl.exceptions.PolarsError) as error:
            told = str(error).splitlines()[0]
            raise UserError(f"column {name!r}: {told}; give what training had, {_wanted(coder)}") from None
        if isinstance(coder, SeriesCoder) and not coder.wide:
            columns[name] = _series(columns[name])
    if isinstance(coder, AudioCoder):
        columns["rate"] = pl.Series("rate", [int(row.get("rate", coder.rate)) for row in records])
    if times is not None and all(times.column in row for row in records):
        columns[times.column] = pl.Series(times.column, [list(row[times.column]) for row in records])
    return pl.DataFrame(columns)


def _series(column: pl.Series) -> pl.Series:
    """The column, if it holds lists of numbers, or nothing at all."""
    inner: Any = column.dtype
    if inner == pl.Null:
        return column.cast(pl.List(pl.Float64))
    while isinstance(inner, (pl.List, pl.Array)):
        inner = inner.inner
    if column.dtype.is_nested() and (inner.is_numeric() or inner == pl.Null):
        return column
    told = next(repr(v.to_list() if isinstance(v, pl.Series) else v) for v in column if v is not None)
    raise UserError(f"column {column.name!r}: {told[:40]} is no list of numbers; give what training had")


def _named(row: Any, names: tuple[str, ...], coder: Any) -> dict[str, Any]:
    if len(names) == 1:
        return {names[0]: row}
    steps = _plain(row)
    by_column = steps if coder.wide else list(map(list, zip(*steps, strict=True)))
    if len(by_column) != len(names):
        raise UserError(f"a row has {len(by_column)} numbers, training had {len(names)}: {', '.join(names[:8])}")
    return dict(zip(names, by_column, strict=True))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _dtype(coder: Any) -> Any:
    if isinstance(coder, AudioCoder):
        return pl.List(pl.Float32)
    if isinstance(coder, SeriesCoder):
        return pl.Float64 if coder.wide else None
    return pl.List(pl.String) if coder.unit == "tokens" else pl.String


def _wanted(coder: Any) -> str:
    if isinstance(coder, (SeriesCoder, AudioCoder)):
        return "numbers"
    return "lists of strings" if coder.unit == "tokens" else "text"


def rows_of(path: Any, saved: Saved, chunk: int) -> Iterator[list[dict[str, Any]]]:
    """Rows of a file as dicts of all its columns; of a long table, one for each group."""
    options = saved.options.model_copy(update={"input": (), "target": ()})
    found = source(path, options, Notes())
    frame = found.frame()
    if saved.plan.layout == "long":
        every = joined(frame.collect(), saved.plan, found.parts[0].label).to_dicts()
        yield from (every[start : start + chunk] for start in range(0, len(every), chunk))
        return
    for start in range(0, found.rows, chunk):
        yield frame.slice(start, chunk).collect().to_dicts()
