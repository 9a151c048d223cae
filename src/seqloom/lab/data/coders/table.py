"""Code the columns of a table in time: numbers are standardised, names become one feature for each value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.coder import Coder
from seqloom.lab.data.coders.series import StandardScale, check_range
from seqloom.lab.data.task import Features

Array = np.ndarray[Any, Any]
MOST_CATEGORIES = 50  # values of a column that have a feature each; rarer ones have none


class TableCoder(Coder, key="table"):
    """Encode each row of a table as a vector.

    A missing number is replaced by that of the season before, or else by the last one of its series, and a feature
    "missing:..." marks it. A value of a categorical column is the feature "column=value"; a missing or unknown one has
    no feature.

    Args:
        known: Those of them whose future is known.
        categories: The values of the categorical ones.
        scale: Mean and deviation of the others.
        season: The season in steps; 1 if there is none.
    """

    def __init__(
        self,
        columns: Sequence[str],
        known: Sequence[str] = (),
        categories: Mapping[str, Sequence[str]] | None = None,
        scale: Mapping[str, Any] | None = None,
        season: int = 1,
    ) -> None:
        self.columns, self.known, self.season = tuple(columns), tuple(known), season
        self.categories = {name: tuple(values) for name, values in (categories or {}).items()}
        self.scale = StandardScale(**(scale or {}))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of numbers."""
        return tuple(name for name in self.columns if name not in self.categories)

    @property
    def space(self) -> Features:
        flags = {f"{name}={value}": name for name, values in self.categories.items() for value in values}
        of = dict(zip(self.numbers, self.numbers, strict=True)) | flags
        names = (*self.scale.add_masks(self.numbers), *flags)
        source = {name: of.get(name, name.removeprefix("missing:")) for name in names}
        return Features(names, tuple(n for n in names if source[n] in self.known), tuple(flags))

    def fit(self, frame: pl.DataFrame) -> None:
        """Fit the scale and collect the categories of the training rows."""
        for name in [n for n in self.columns if isinstance(frame.schema[n], (pl.String, pl.Categorical, pl.Enum))]:
            counts = (
                frame[name].cast(pl.String).drop_nulls().value_counts().sort("count", name, descending=[True, False])
            )
            self.categories[name] = tuple(sorted(counts[name].head(MOST_CATEGORIES).to_list()))
        self.scale = StandardScale.fit([self.read(frame)])

    def read(self, frame: pl.DataFrame) -> Array:
        """Return the numbers (N, columns) with NaN for missing ones."""
        values = frame.select(pl.col(self.numbers).cast(pl.Float64, strict=False).fill_null(float("nan"))).to_numpy()
        return check_range(values.astype(np.float64), self.numbers)

    def encode(self, frame: pl.DataFrame, first: Array) -> Array:
        """Encode rows that are sorted by series and time.

        Args:
            frame: N rows.
            first: (N,) the number of the first row of each row's series.

        Returns:
            (N, features) float32.
        """
        values = self.read(frame)
        filled = self.scale.standardise(fill_gaps(values, first, self.season))
        masks = ~np.isfinite(values[:, self.scale.missing])
        flags = [
            (frame[name].cast(pl.String) == value).fill_null(False).to_numpy()[:, None]
            for name, known in self.categories.items()
            for value in known
        ]
        return np.concatenate([np.nan_to_num(filled), masks, *flags], 1).astype(np.float32)


def fill_gaps(values: Array, first: Array, season: int) -> Array:
    """Replace missing values (N, D) with those of the season before, or else of the row before, in the same series.

    Later values are never used, so that a window that ends in a gap knows nothing of what follows. Values before the
    first known one stay missing.

    Args:
        values: NaN or infinity if missing.
        first: (N,) the number of the first row of each row's series.
        season: In rows.
    """
    filled = np.where(np.isfinite(values), values, np.nan)
    for row in np.flatnonzero(np.isnan(filled).any(1)).tolist():
        for back in (season, 1):
            if row - back >= first[row]:
                filled[row] = np.where(np.isnan(filled[row]), filled[row - back], filled[row])
    return filled


class AttributesCoder(TableCoder, key="attributes"):
    """Encode columns as (A,) features of a row: numbers are standardised, names have one feature for each value."""

    def __init__(
        self,
        columns: Sequence[str],
        categories: Mapping[str, Sequence[str]] | None = None,
        scale: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(columns, (), categories, scale)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the A features."""
        return self.space.names

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:  # type: ignore[override]
        super().fit(pl.concat([frame.select(self.columns) for frame in frames]))

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:  # type: ignore[override]
        n = len(frame)
        return super().encode(frame, np.arange(n)), np.ones(n, dtype=np.int64)

    def find_type(self, column: str) -> pl.DataType | type[pl.DataType]:
        """Return the type of a column in new rows."""
        return pl.String if column in self.categories else pl.Float64
