"""Standardise features by mean and deviation, computed chunk by chunk without missing values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqloom.core.errors import UserError

Array = np.ndarray[Any, Any]
MAX_VALUE = 1e30  # float32 ends at 3.4e38; the rest leaves room for the sums of a model


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
