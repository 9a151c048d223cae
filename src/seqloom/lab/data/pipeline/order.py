"""Decide whether the rows of a table without time stamps look like steps in time or like unordered rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

Array = np.ndarray[Any, Any]
MOST_ROWS = 10_000  # rows that are read to decide
LAGS = 12  # steps between rows that are correlated
CERTAIN = 4.5  # standard errors beyond which the largest of a few dozen correlations is not chance
FEWEST_ROWS = 30  # with fewer, no correlation is certain


def have_order(rows: pl.DataFrame, numbers: Sequence[str], labels: Sequence[str] = ()) -> bool:
    """Return whether rows depend on the preceding rows more than expected by chance.

    Either a column of numbers is autocorrelated after the mean of each label is subtracted (a table may only be sorted
    by its label), or a label tends to repeat that of the previous row. True if there are too few rows to tell.

    Args:
        rows: The table, in file order.
        numbers: Columns of numbers.
        labels: Columns of labels.
    """
    rows = rows.head(MOST_ROWS)
    if len(rows) < FEWEST_ROWS:
        return True
    bound = CERTAIN / math.sqrt(len(rows))
    kinds = [rows[name].cast(pl.String).fill_null("").rank("dense").to_numpy().astype(int) - 1 for name in labels]
    if any(_measure_persistence(kind) > bound for kind in kinds):
        return True
    for name in numbers:
        values = rows[name].cast(pl.Float64, strict=False).to_numpy()
        for kind in kinds or [np.zeros(len(rows), dtype=int)]:
            if _measure_correlation(values, kind) > bound:
                return True
    return False


def _measure_persistence(kind: Array) -> float:
    """Return how much more often than by chance a label repeats the previous one; 0 if the rows are sorted by it."""
    runs = 1 + int((kind[1:] != kind[:-1]).sum())
    if runs <= len(np.unique(kind)):
        return 0.0
    expected = float(((np.bincount(kind) / len(kind)) ** 2).sum())
    return (float((kind[1:] == kind[:-1]).mean()) - expected) / max(0.1, 1 - expected)


def _measure_correlation(values: Array, kind: Array) -> float:
    """Return the largest correlation with earlier values, after the mean of each label is subtracted."""
    known = np.isfinite(values)
    clean = np.where(known, values, 0.0)
    means = np.bincount(kind, clean) / np.maximum(1, np.bincount(kind, known))
    d = np.where(known, clean - means[kind], 0.0)
    total = float(d @ d)
    if total == 0:
        return 0.0
    return max(abs(float(d[lag:] @ d[:-lag])) / total for lag in range(1, LAGS + 1))
