"""Coders for series of numbers and for real targets, both standardised by mean and deviation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.coders.coder import Coder
from seqloom.lab.data.task import Features, Values

Array = np.ndarray[Any, Any]
MAX_VALUE = 1e30  # float32 ends at 3.4e38; the rest leaves room for the sums of a model


class SeriesCoder(Coder, key="series"):
    """Encode series with D features per step. With `wide`, the columns are the steps of one feature."""

    def __init__(
        self, columns: Sequence[str], wide: bool = False, width: int = 0, scale: Mapping[str, Any] | None = None
    ) -> None:
        self.columns, self.wide, self.width = tuple(columns), wide, width
        self.scale = StandardScale(**(scale or {}))

    @property
    def _names(self) -> tuple[str, ...]:
        if self.wide:
            return ("value",)
        if len(self.columns) > 1 or self.width <= 1:
            return self.columns
        return tuple(f"{self.columns[0]}_{i + 1}" for i in range(self.width))

    @property
    def space(self) -> Features:
        return Features(self.scale.add_masks(self._names))

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        self.scale = StandardScale.fit(self.read(frame)[0] for frame in frames)

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        values, lengths = self.read(frame)
        return self.scale.encode(values), lengths

    def read(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        """Return values (steps of all rows, D) with NaN for missing ones, and lengths (rows,)."""
        values, lengths = self._read_unchecked(frame)
        return check_range(values, self._names), lengths

    def _read_unchecked(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        if self.wide:
            table = frame.select(pl.col(self.columns).cast(pl.Float64)).to_numpy()
            return table.reshape(-1, 1), np.full(len(table), table.shape[1], dtype=np.int64)
        first = frame[self.columns[0]]
        lengths = first.list.len().fill_null(0).to_numpy().astype(np.int64)
        if len(self.columns) > 1:
            self._check_lengths(frame, lengths)
            return np.stack([_flatten(frame[name]) for name in self.columns], 1), lengths
        steps = first.explode(empty_as_null=False, keep_nulls=False)
        if not steps.dtype.is_nested():
            if self.width > 1 and len(steps):
                expected = f"one number per step, training had {self.width}"
                raise UserError(f"column {self.columns[0]!r}: {expected}; give a list of numbers for every step")
            self.width = self.width or 1
            return _flatten(first).reshape(-1, self.width), lengths
        widths = steps.list.len().fill_null(0)
        self.width = self.width or int(widths[0] if len(widths) else 1)
        if (widths != self.width).any():
            step = int((widths != self.width).arg_max() or 0)
            row = int(np.searchsorted(np.cumsum(lengths), step, side="right"))
            problem = (
                f"{count(int(widths[step]), 'number')} in a step of series {row + 1} of this piece, not {self.width}"
            )
            raise UserError(f"column {self.columns[0]!r}: {problem}; give every step the same features")
        return _flatten(steps).reshape(-1, self.width), lengths

    def _check_lengths(self, frame: pl.DataFrame, lengths: Array) -> None:
        """Raise a UserError if the columns of a row have different lengths, which the sum over two rows could hide."""
        for name in self.columns[1:]:
            other = frame[name].list.len().fill_null(0).to_numpy()
            if (other != lengths).any():
                row = int((other != lengths).argmax())
                raise UserError(
                    f"row {row + 1}: {name!r} has {count(int(other[row]), 'step')} and {self.columns[0]!r} has "
                    f"{int(lengths[row])}; give each as many steps"
                )

    def decode(self, row: Array) -> list[list[float]]:
        values: list[list[float]] = self.scale.invert(row[:, : len(self._names)]).tolist()
        return values


def _flatten(lists: pl.Series) -> Array:
    """Concatenate lists of numbers; missing ones are NaN."""
    flat = lists.explode(empty_as_null=False, keep_nulls=False)
    return flat.cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()


class ValuesCoder(Coder, key="values"):
    """Encode K real targets per row. A missing one is NaN."""

    def __init__(self, columns: Sequence[str], scale: Mapping[str, Any] | None = None) -> None:
        self.columns = tuple(columns)
        self.scale = StandardScale(**(scale or {}))

    @property
    def space(self) -> Values:
        return Values(self.columns)

    def _read(self, frame: pl.DataFrame) -> Array:
        numbers = pl.col(self.columns).cast(pl.Float64, strict=False).fill_null(float("nan"))
        return check_range(frame.select(numbers).to_numpy(), self.columns)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        self.scale = StandardScale.fit(self._read(frame) for frame in frames)

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        return self.scale.standardise(self._read(frame)).astype(np.float32), np.ones(len(frame), dtype=np.int64)

    def decode(self, row: Array) -> list[float]:
        values: list[float] = self.scale.invert(np.asarray(row, dtype=np.float64)).tolist()
        return values


def check_range(values: Array, names: Sequence[str]) -> Array:
    """Check that no value is too large for 32-bit arithmetic, and return the values.

    Args:
        values: (N, D) as read; missing values are not finite.
        names: The names of the D columns.

    Raises:
        UserError: If a value is too large.
    """
    too_large = np.isfinite(values) & (np.abs(values) > MAX_VALUE)
    if too_large.any():
        row, column = (int(i) for i in np.argwhere(too_large)[0])
        raise UserError(
            f"column {names[column]!r} holds {values[row, column]:g}, which is too large for 32-bit numbers "
            f"(at most {MAX_VALUE:g}); correct it, or leave it empty"
        )
    return values


class StandardScale:
    """Standardise each feature: z = (v - mean) / deviation."""

    def __init__(self, mean: ArrayLike = (), deviation: ArrayLike = (), missing: ArrayLike = ()) -> None:
        self.mean, self.deviation = np.array(mean, dtype=np.float64), np.array(deviation, dtype=np.float64)
        self.missing = np.array(missing, dtype=bool)  # (D,) features with missing values in training

    @staticmethod
    def fit(pieces: Iterable[Array]) -> StandardScale:
        """Fit a scale to chunks (N, D), combining means and squares as in Chan, Golub and LeVeque 1983."""
        n: Any = 0
        mean: Any = 0
        squares: Any = 0
        missing: Any = False
        for piece in pieces:
            present = np.isfinite(piece)
            count = present.sum(0)
            m = np.where(present, piece, 0).sum(0) / np.maximum(count, 1)
            s = (np.where(present, piece - m, 0) ** 2).sum(0)
            both = np.maximum(n + count, 1)
            squares = squares + s + (m - mean) ** 2 * n * count / both
            mean = mean + (m - mean) * count / both
            n, missing = n + count, missing | ~present.all(0)
        deviation = np.sqrt(squares / np.maximum(n, 1))
        return StandardScale(mean, np.where(deviation > 0, deviation, 1.0), missing)

    def standardise(self, values: Array) -> Array:
        """Standardise values; missing ones become NaN."""
        return (np.where(np.isfinite(values), values, np.nan) - self.mean) / self.deviation

    def invert(self, values: Array) -> Array:
        """Convert standardised values back to their units."""
        return values * self.deviation + self.mean

    def encode(self, values: Array) -> Array:
        """Standardise values and append a mask for each feature with missing values.

        Args:
            values: (N, D).

        Returns:
            (N, D + masks) float32; a missing value is 0 and its mask is 1.
        """
        z = self.standardise(values)
        gaps = np.isnan(z)
        return np.concatenate([np.where(gaps, 0, z), gaps[:, self.missing]], 1).astype(np.float32)

    def add_masks(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns that `encode` returns."""
        masks = [f"missing:{name}" for name, gap in zip(names, self.missing, strict=True) if gap]
        return (*names, *masks)

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("mean", "deviation", "missing")}
