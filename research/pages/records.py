"""What the generated parts of the pages share: where records are, and how ranges and pictures look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "research" / "results"
GRU = "torch.nn.GRU"
SPEED_ROWS, SPEED_STEPS = 16, 512  # of the picture of speed
Row = Mapping[str, Any]


def format_command(record: Row) -> str:
    """Return the command of a record as it is typed today; a record keeps the one that made it."""
    command = record["command"] if isinstance(record["command"], str) else " ".join(record["command"])
    command = re.sub(r"python3? benchmarks/(?:quality/)?(\w+)\.py", r"python -m research \1", command)
    return command.replace("benchmarks/results", "research/results")


def span(values: list[float | None]) -> str:
    numbers = [value for value in values if value]
    return f"{min(numbers):.1f} to {max(numbers):.1f}x" if numbers else ""


def import_pyplot() -> ModuleType:
    """Import matplotlib's pyplot, set to write the same SVG file for the same picture."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "seqloom", "svg.fonttype": "none", "font.family": "sans-serif"}
    import matplotlib.pyplot as plt

    return plt
