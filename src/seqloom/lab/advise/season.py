"""The period of a series: the distance, after the first dip, at which it goes best with itself."""

from __future__ import annotations

import numpy as np

from seqloom.lab.advise.dependence import autocorrelation
from seqloom.lab.advise.sample import Sample

CLEAR = 0.1  # how far a period must rise above the dip before it
ROWS = 200


def season(sample: Sample) -> int | None:
    """In steps; None where there is none, or where no numbers go in."""
    rows = [e.x.numpy() for e in sample.examples[:ROWS] if e.x.dim() > 1]
    longest = min((len(r) for r in rows), default=0) // 2
    if longest < 4:
        return None
    r = np.array([found.mean() for found in autocorrelation(rows, list(range(1, longest + 1)))])
    falling = np.flatnonzero(np.diff(r) > 0)
    if not len(falling):
        return None
    dip = int(falling[0])
    best = dip + int(r[dip:].argmax())
    return best + 1 if r[best] - r[dip] > CLEAR else None
