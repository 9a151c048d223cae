"""Benchmark results that support the advice, shipped with the package together with their origin.

`python -m research advice store` generates `measurements.json` from the records of the repository.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "measurements.json"


@dataclass(frozen=True)
class Measurements:
    """Values by key, with their sources."""

    values: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, Mapping[str, str]]

    def __call__(self, key: str) -> float:
        return float(self.values[key]["value"])

    def has(self, *keys: str) -> bool:
        return all(key in self.values for key in keys)

    def source(self, key: str) -> dict[str, str]:
        """Return the description, record, command, date and hardware of a measurement."""
        name = self.values[key]["source"]
        return {"what": self.values[key]["what"], "record": name, **self.sources[name]}


@lru_cache
def load_measurements() -> Measurements:
    """Load the measurements of the package."""
    record = json.loads(FILE.read_text(encoding="utf-8"))
    return Measurements(record["values"], record["sources"])
