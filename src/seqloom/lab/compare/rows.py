"""The rows of a comparison, each with its quality and its cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from seqloom.core.plurals import count
from seqloom.lab.compare.significance import Bootstrap, Estimate, estimate_difference
from seqloom.lab.stats.metrics import Metric
from seqloom.lab.stats.resampling import explain_few_rows


@dataclass(frozen=True)
class Row:
    """One baseline or model; unknown values are None."""

    name: str  # as --models takes it, or a baseline's
    label: str
    baseline: bool
    note: str = ""
    valid: float | None = None
    rank: tuple[float, float] = (math.inf, math.inf)  # on the validation rows; low is good
    test: Estimate | None = None
    behind: Estimate | None = None  # this one minus the recommended row, on the test rows
    seeds: int = 0
    parameters: int | None = None
    core: int | None = None  # parameters without embeddings and output layers over tokens
    lr: float | None = None
    seconds: float | None = None  # time of one training
    latency: tuple[float, float] | None = None  # seconds for one sequence, for 64
    memory: int | None = None  # bytes in training
    left_out: bool = False  # not trained for lack of time


@dataclass(frozen=True, eq=False)
class Results:
    """The rows, sorted by their validation metric, and what is needed to judge them."""

    rows: list[Row]
    metric: Metric
    bootstraps: dict[str, Bootstrap]  # draws of each row's test metric
    margin: float = 1.0  # margin of the settings; a lead up to it does not count
    test_rows: int = 0
    epochs: float | None = None  # epochs of the longest trainings, if the data are finite
    is_short: bool = False  # the budget was too short for a thorough comparison
    more: str = ""  # what a larger budget would allow
    chosen: str = ""  # the name of the recommended row
    folds: tuple[int, int] | None = None  # folds of cross-validation: those that all tested rows have, and all folds
    has_learned: bool = False  # whether the recommended row leads the trivial one
    example: str = "row"  # what is scored: a window of a table in time, otherwise a row
    ranking_rows: int = 0  # rows that rank the baselines, if these are not just the validation rows
    overlap: int = 1  # number of neighbouring test rows that share steps of a series

    @property
    def tested(self) -> str:
        """The number of tested examples in words: "38 test rows"."""
        return count(self.test_rows, f"test {self.example}")

    @property
    def interval_note(self) -> str:
        """A sentence about what few test rows mean for the intervals; "" if there are enough."""
        has_counts = any(one.right is not None for one in self.bootstraps.values())
        is_known = has_counts or not self.bootstraps  # intervals of shares do not need many rows
        return "" if is_known else explain_few_rows(self.test_rows, self.overlap, f"test {self.example}")

    @property
    def has_no_intervals(self) -> bool:
        """Whether there are too few test rows for an interval."""
        tests = [row.test for row in self.rows if row.test is not None]
        return bool(tests) and not any(test.has_interval for test in tests)

    @property
    def models(self) -> list[Row]:
        """Models that were trained to the end."""
        return [row for row in self.rows if row.test is not None and not row.baseline]

    @property
    def baselines(self) -> list[Row]:
        return [row for row in self.rows if row.test is not None and row.baseline]

    def difference(self, one: Row, other: Row) -> Estimate:
        """Estimate one - other on the test rows."""
        return estimate_difference(self.bootstraps[one.name], self.bootstraps[other.name])
