"""A quantity measured at distances, and how far it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqloom.core.errors import UserError

REACH_SHARE = 0.9  # share of the total that lies within the reach


@dataclass(frozen=True)
class DistanceCurve:
    """y at distances in steps: 0 is the step of the target, positive is before it, negative after it.

    Distances may be sparse; each represents the stretch around it.
    """

    distances: tuple[int, ...]
    y: tuple[float, ...]  # 0 where nothing exceeds chance

    def __post_init__(self) -> None:
        if len(self.distances) != len(self.y) or list(self.distances) != sorted(set(self.distances)):
            raise UserError(f"the distances of a curve must rise, one for each value; got {self.distances}")

    @property
    def total(self) -> float:
        return sum(self._mass)

    @property
    def reach(self) -> int | None:
        """The distance, to either side, within which REACH_SHARE of the total lies; None if the total is 0."""
        total = self.total
        if total <= 0:
            return None
        by_distance = sorted(zip((abs(d) for d in self.distances), self._mass, strict=True))
        inside = np.cumsum([m for _, m in by_distance])
        return by_distance[int(np.searchsorted(inside, REACH_SHARE * total * (1 - 1e-9)))][0]

    @property
    def ahead(self) -> float:
        """The share that lies after the step of the target."""
        total = self.total
        return sum(m for d, m in zip(self.distances, self._mass, strict=True) if d < 0) / total if total > 0 else 0.0

    def within(self, steps: int) -> float:
        """Return the share that lies within this many steps."""
        total = self.total
        near = sum(m for d, m in zip(self.distances, self._mass, strict=True) if abs(d) <= steps)
        return near / total if total > 0 else 0.0

    @property
    def _mass(self) -> list[float]:
        widths = stretch_widths(self.distances)
        return [w * v for w, v in zip(widths, self.y, strict=True)]


def stretch_widths(distances: Sequence[int]) -> list[float]:
    """Return how many steps each distance represents: half of the way to each neighbour."""
    d = [distances[0] - 1, *distances, distances[-1] + 1]
    return [(after - before) / 2 for before, after in zip(d[:-2], d[2:], strict=True)]


def space_distances(longest: int, count: int = 24) -> list[int]:
    """Return distances from 0 to longest, spaced geometrically."""
    if longest < count:
        return list(range(max(longest, 0) + 1))
    far = np.geomspace(1, longest, count)
    return sorted({0, *(round(float(d)) for d in far)})
