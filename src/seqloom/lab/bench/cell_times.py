"""Stored times of cells, which `seqloom list cells` shows beside their cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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


def summarise_times(record: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the content of the file, from a record of `research/speed/torchrecurrent_cells.py`.

    Args:
        record: The record.
        dtype: The type whose rows to take.
    """
    steps, machine = record["steps"], record["hardware"]
    rows = [row for row in record["rows"] if row["dtype"] == dtype and "both_ms" in row]
    on = ", ".join(gpu["name"] for gpu in machine["gpus"]) or f"one thread of {machine['cpu']}"
    on += f" ({record['note']})" if "note" in record else ""
    return {
        "us_per_step": {row["cell"]: round(1e3 * row["both_ms"] / steps, 2) for row in rows},
        "about": f"{record['batch']} rows, {steps} steps, {record['hidden']} inputs and units, {dtype}, {on}",
        "source": {"command": record["command"], "date": record["date"]},
    }
