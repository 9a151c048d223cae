"""Tables as DataFrames: of polars or of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard, cast

import polars as pl

from seqloom.lab.data.task import Frame


def is_frame(data: object) -> TypeGuard[Frame]:
    """Return whether this is a DataFrame of polars or pandas."""
    return type(data).__name__ == "DataFrame"


def make_frame(rows: Sequence[Mapping[str, Any]], like: object = None) -> Frame:
    """Return rows as a DataFrame; a key that a row lacks is null there.

    Args:
        rows: The rows.
        like: A DataFrame whose library to use. Default: pandas if it is installed, otherwise polars.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    if not isinstance(like, pl.DataFrame):
        try:
            import pandas
        except ImportError:
            pass
        else:
            return cast(Frame, pandas.DataFrame(columns))
    return pl.DataFrame(columns, strict=False)


def flatten_results(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turn predictions into rows, with the probability of each class in a separate column, `probability_CLASS`."""
    rows = []
    for result in results:
        row = dict(result)
        by_class = row.pop("probabilities", None)
        rows.append(row | {f"probability_{name}": value for name, value in (by_class or {}).items()})
    return rows
