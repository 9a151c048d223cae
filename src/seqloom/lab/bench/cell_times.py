"""Stored times of cells, which `seqloom list cells` shows beside their cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("cell_times.json")


@dataclass(frozen=True)
class CellTimes:
    """Microseconds per step of one layer, forward and backward, for the cells that were measured.

    Attributes:
        us_per_step: By cell.
        about: Sizes, type and hardware, in words.
        source: Command and date of the measurement.
    """

    us_per_step: dict[str, float]
    about: str
    source: dict[str, str]


@cache
def read_cell_times() -> CellTimes:
    """Return the stored times."""
    stored = json.loads(FILE.read_text())
    return CellTimes(stored["us_per_step"], stored["about"], stored["source"])
