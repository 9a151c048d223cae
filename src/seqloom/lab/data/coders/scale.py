"""Mean and deviation of every feature, summed up piece by piece; what is missing counts for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from seqloom.core.errors import UserError

Array = np.ndarray[Any, Any]
LARGEST = 1e30  # float32 ends at 3.4e38; the rest is room for the sums of a model


def check_range(values: Array, names: Sequence[str]) -> Array:
    """Check that no value is too large for 32-bit arithmetic, and return the values.

    Args:
        values: (N, D), as they were read; not finite where one is missing.
        names: Of the D columns.

    Raises:
        ValueError: If one is.
    """
    far = np.isfinite(values) & (np.abs(values) > LARGEST)
    if far.any():
        row, column = (int(i) for i in np.argwhere(far)[0])
        raise UserError(
            f"column {names[column]!r} holds {values[row, column]:g}, which is too large for 32-bit numbers "
            f"(at most {LARGEST:g}); correct it, or leave it empty"
        )
    return values


class Scale:
    """z = (v - mean) / deviation, feature by feature."""

    def __init__(self, mean: Any = (), deviation: Any = (), missing: Any = ()) -> None:
        self.mean, self.deviation = np.array(mean, dtype=np.float64), np.array(deviation, dtype=np.float64)
        self.missing = np.array(missing, dtype=bool)  # features that training lacks now and then

    @staticmethod
    def fit(pieces: Iterable[Array]) -> Scale:
        """pieces (N, D). Chan, Golub and LeVeque 1983: means and squares of pieces, put together."""
        n: Any = 0
        mean: Any = 0
        squares: Any = 0
        missing: Any = False
        for piece in pieces:
            there = np.isfinite(piece)
            count = there.sum(0)
            m = np.where(there, piece, 0).sum(0) / np.maximum(count, 1)
            s = (np.where(there, piece - m, 0) ** 2).sum(0)
            both = np.maximum(n + count, 1)
            squares = squares + s + (m - mean) ** 2 * n * count / both
            mean = mean + (m - mean) * count / both
            n, missing = n + count, missing | ~there.all(0)
        deviation = np.sqrt(squares / np.maximum(n, 1))
        return Scale(mean, np.where(deviation > 0, deviation, 1.0), missing)

    def forth(self, values: Array) -> Array:
        """Scaled; what is missing stays NaN."""
        return (np.where(np.isfinite(values), values, np.nan) - self.mean) / self.deviation

    def back(self, values: Array) -> Array:
        return values * self.deviation + self.mean

    def masked(self, values: Array) -> Array:
        """(N, D) -> (N, D + features with gaps) float32: scaled, 0 where missing, then 1 where missing."""
        z = self.forth(values)
        gaps = np.isnan(z)
        return np.concatenate([np.where(gaps, 0, z), gaps[:, self.missing]], 1).astype(np.float32)

    def names(self, names: Iterable[str]) -> tuple[str, ...]:
        named = tuple(names)
        return named + tuple(f"missing:{name}" for name, gap in zip(named, self.missing, strict=True) if gap)

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("mean", "deviation", "missing")}
