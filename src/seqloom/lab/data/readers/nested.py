"""Objects inside objects as columns with dotted names: {"data": {"text": ...}} has the column data.text."""

from __future__ import annotations

from typing import Any

import polars as pl


def flatten(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Replace columns of objects, and of lists of objects, with one column for each field."""
    while True:
        schema = frame.collect_schema()
        columns = [column for name, kind in schema.items() for column in _list_fields(name, kind)]
        if len(columns) == len(schema) and not any(_get_fields(kind) for kind in schema.values()):
            return frame
        frame = frame.select(columns)


def _get_fields(kind: Any) -> list[pl.Field]:  # noqa: ANN401  # a type of polars, or an instance of it
    inner = kind.inner if isinstance(kind, pl.List) else kind
    return inner.fields if isinstance(inner, pl.Struct) else []


def _list_fields(name: str, kind: pl.DataType) -> list[pl.Expr]:
    column, fields = pl.col(name), _get_fields(kind)
    if not fields:
        return [column]
    if isinstance(kind, pl.List):
        return [column.list.eval(pl.element().struct.field(f.name)).alias(f"{name}.{f.name}") for f in fields]
    return [column.struct.field(f.name).alias(f"{name}.{f.name}") for f in fields]


def cast_arrays(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Convert fixed-size arrays to lists: polars cannot read such arrays back from a file if the size is 0."""
    schema = frame.collect_schema()
    changed = {name: kind for name, kind in schema.items() if _make_lists(kind) != kind}
    return frame.with_columns(pl.col(name).cast(_make_lists(kind)) for name, kind in changed.items())


def _make_lists(kind: Any) -> Any:  # noqa: ANN401  # a type of polars
    return pl.List(_make_lists(kind.inner)) if isinstance(kind, (pl.Array, pl.List)) else kind
