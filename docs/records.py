"""What the generated parts of the pages share: where records are, and how ranges and pictures look."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
GRU = "torch.nn.GRU"
SPEED_ROWS, SPEED_STEPS = 16, 512  # of the picture of speed
Row = Mapping[str, Any]


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
