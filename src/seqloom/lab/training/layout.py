"""Names of the files and folders of runs and comparisons, for code that does not need torch."""

from __future__ import annotations

RUNS = "runs"  # default folder of all runs
RUN_FILE = "run.json"  # makes a folder a run
COMPARISON_FILE = "compare.json"  # makes a folder a comparison
