"""Coders for series of numbers and for real targets, both standardised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.coders.scale import StandardScale, check_range
from seqloom.lab.data.task import Features, Values

Array = np.ndarray[Any, Any]


class SeriesCoder:
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

    def state(self) -> dict[str, Any]:
        common = {"columns": list(self.columns), "wide": self.wide, "width": self.width}
        return {"coder": "series", "scale": self.scale.state()} | common


def _flatten(lists: pl.Series) -> Array:
    """Concatenate lists of numbers; missing ones are NaN."""
    flat = lists.explode(empty_as_null=False, keep_nulls=False)
    return flat.cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()


class ValuesCoder:
    """Encode K real targets per row. A missing one is NaN."""

    def __init__(self, columns: Sequence[str], scale: Mapping[str, Any] | None = None) -> None:
        self.columns = tuple(columns)
        self.scale = StandardScale(**(scale or {}))

    @property
    def space(self) -> Values:
        return Values(self.columns)

    def _read(self, frame: pl.DataFrame) -> Array:
        numbers = [pl.col(name).cast(pl.Float64, strict=False).fill_null(float("nan")) for name in self.columns]
        return check_range(frame.select(numbers).to_numpy(), self.columns)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        self.scale = StandardScale.fit(self._read(frame) for frame in frames)

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        return self.scale.standardise(self._read(frame)).astype(np.float32), np.ones(len(frame), dtype=np.int64)

    def decode(self, row: Array) -> list[float]:
        values: list[float] = self.scale.invert(np.asarray(row, dtype=np.float64)).tolist()
        return values

    def state(self) -> dict[str, Any]:
        return {"coder": "values", "columns": list(self.columns), "scale": self.scale.state()}
