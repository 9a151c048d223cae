"""Stored times of cells, which `seqloom list cells` shows beside their cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("cell_times.json")


@dataclass(frozen=True)
class CellTimes:
    """Microseconds per step of one layer, forward and backward, for the cells that were measured."""

    us_per_step: dict[str, float]  # by cell
    about: str  # sizes, type and hardware, in words
    source: dict[str, str]  # command and date of the measurement


@cache
def read_cell_times() -> CellTimes:
    """Return the stored times."""
    stored = json.loads(FILE.read_text())
    return CellTimes(stored["us_per_step"], stored["about"], stored["source"])
