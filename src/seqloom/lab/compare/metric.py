"""The one number by which models are told apart, for each kind of task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.lab.stats.metrics import HIGHER_IS_BETTER, Array, primary_metric

Columns = Mapping[str, Array]


@dataclass(frozen=True)
class Metric:
    """`shape` of above / below, both summed over rows: then any draw of the rows has a value, too."""

    name: str
    above: Callable[[Columns], Array]
    below: Callable[[Columns], Array]
    shape: Callable[[Any], Any] = lambda ratio: ratio

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.name in HIGHER_IS_BETTER

    @property
    def percent(self) -> bool:
        return self.name in ("accuracy", "span_f1", "cer")

    def shown(self, value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return "-"
        return f"{value:.1%}" if self.percent else f"{value:.4g}"

    def apart(self, value: float) -> str:
        """A difference, without its sign and unit: 1.8 (points)."""
        off = abs(value)
        return f"{100 * off:.1f}" if self.percent else f"{off:.2g}" if off < 100 else f"{off:.0f}"

    @property
    def unit(self) -> str:
        return " points" if self.percent else ""


def _column(name: str) -> Callable[[Columns], Array]:
    return lambda columns: columns[name]


ACCURACY = Metric("accuracy", _column("right"), _column("scored"))
SPANS = Metric("span_f1", lambda c: 2 * c["spans_right"], lambda c: c["spans_predicted"] + c["spans_true"])
ERRORS = Metric("cer", _column("letter_edits"), _column("letters"))
PERPLEXITY = Metric("perplexity", _column("nats"), _column("targets"), np.exp)
MSE = Metric("mse", _column("square"), _column("values"))
RMSE = Metric("rmse", _column("square"), _column("values"), np.sqrt)


def metric(kind: str, valid: Mapping[str, Any]) -> Metric:
    """That of a kind; of tags it depends on what a validation has found."""
    if kind == "tag":
        return SPANS if "span_f1" in valid else ACCURACY
    kinds = {"classify": ACCURACY, "transcribe": ERRORS, "forecast": MSE, "regress": RMSE}
    return kinds.get(kind, PERPLEXITY)


def rank(kind: str, valid: Mapping[str, float | None]) -> tuple[float, float]:
    """Sorts the better first: by the metric that chooses the best weights, then by the loss."""
    known = {name: math.inf if value is None else value for name, value in valid.items()}
    name = primary_metric(kind, known)
    value, loss = known.get(name, math.inf), known.get("loss", math.inf)
    return (-value if name in HIGHER_IS_BETTER and math.isfinite(value) else value), loss
