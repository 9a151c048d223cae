"""Numbers such as -999 that mark missing values."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Column, Notes

MARKS = (-99999.0, -9999.0, -999.0, -99.0, 999.0, 9999.0, 99999.0)
FEWEST = 2  # times that a mark occurs
MOST_COLUMNS, MOST_NAMED = 200, 5  # that are searched; that are named


def warn_of_marks(source: Source, columns: Sequence[Column], notes: Notes) -> None:
    """Warn of columns in which such a number is repeated far from all others."""
    schema = source.frame().collect_schema()
    names = [c.name for c in columns if c.use and c.role != "time" and schema[c.name].is_numeric()][:MOST_COLUMNS]
    if not names:
        return
    numbers = source.frame().select(pl.col(name).cast(pl.Float64).alias(str(i)) for i, name in enumerate(names))
    is_mark = [pl.col(str(i)).is_in(MARKS) for i in range(len(names))]
    others = [pl.col(str(i)).filter(~mark & pl.col(str(i)).is_finite()) for i, mark in enumerate(is_mark)]
    facts = numbers.select(
        *(pl.col(str(i)).filter(mark).value_counts().implode().alias(f"marks {i}") for i, mark in enumerate(is_mark)),
        *(other.min().alias(f"low {i}") for i, other in enumerate(others)),
        *(other.max().alias(f"high {i}") for i, other in enumerate(others)),
    )
    found = facts.collect(engine="streaming").row(0, named=True)
    warnings = []
    for i, name in enumerate(names):
        low, high, marks = found[f"low {i}"], found[f"high {i}"], found[f"marks {i}"]
        for mark, rows in sorted(tuple(one.values()) for one in marks):
            is_far = low is not None and max(low - mark, mark - high) > max(-low, high, high - low)
            if rows >= FEWEST and is_far:
                warnings.append(
                    f"column {name!r} has {mark:g} in {count(rows, 'row')}, far from its other values "
                    f"({low:g} to {high:g}); if that marks missing values, leave these fields empty"
                )
    for warning in warnings[:MOST_NAMED]:
        notes.warn(warning)
