"""The metric that ranks the models, for each kind of task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.lab.stats.metrics import HIGHER_IS_BETTER, Array, compute_bleu, primary_metric

Columns = Mapping[str, Array]
TITLES = {"bleu": "BLEU", "span_f1": "span F1", "cer": "character error rate", "mse": "MSE", "rmse": "RMSE"}


@dataclass(frozen=True)
class RatioMetric:
    """`transform(sum(numerator) / sum(denominator))` over rows, so that any resample of the rows has a value."""

    name: str
    numerator: Callable[[Columns], Array]
    denominator: Callable[[Columns], Array]
    transform: Callable[[Any], Any] = lambda ratio: ratio

    @property
    def title(self) -> str:
        """The name for headings and sentences."""
        return TITLES.get(self.name, self.name)

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.name in HIGHER_IS_BETTER

    @property
    def percent(self) -> bool:
        """Whether the values are shares."""
        return self.name in ("accuracy", "span_f1", "cer")

    def sums(self, columns: Columns) -> Array:
        """Return what each row adds to the metric, (n, 2)."""
        return np.stack([self.numerator(columns), self.denominator(columns)], 1).astype(np.float64)

    def value(self, sums: Array) -> Array:
        """Return the metric of sums over rows (..., 2)."""
        return np.asarray(self.transform(sums[..., 0] / np.maximum(sums[..., 1], 1e-12)))

    def format(self, value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return "-"
        return f"{value:.1%}" if self.percent else f"{value:.4g}"

    def format_difference(self, value: float, sign: bool = False) -> str:
        """Format a difference without its unit: 1.8 for 1.8 percentage points. With `sign`, keep a minus."""
        size = abs(value)
        text = f"{100 * size:.1f}" if self.percent else f"{size:.2g}" if size < 100 else f"{size:.0f}"
        return f"-{text}" if sign and value < 0 and float(text) else text

    @property
    def unit(self) -> str:
        """The unit of a difference, after a space."""
        return " percentage points" if self.percent else f" in {self.title}"


class Bleu(RatioMetric):
    """Corpus BLEU from the matches and totals of n-grams, and both lengths."""

    def __init__(self) -> None:
        super().__init__("bleu", _column("bleu"), _column("rows"))

    def sums(self, columns: Columns) -> Array:
        return np.asarray(columns["bleu"], dtype=np.float64)

    def value(self, sums: Array) -> Array:
        return compute_bleu(sums)


def _column(name: str) -> Callable[[Columns], Array]:
    return lambda columns: columns[name]


ACCURACY = RatioMetric("accuracy", _column("right"), _column("scored"))
SPANS = RatioMetric("span_f1", lambda c: 2 * c["spans_right"], lambda c: c["spans_predicted"] + c["spans_true"])
ERRORS = RatioMetric("cer", _column("letter_edits"), _column("letters"))
PERPLEXITY = RatioMetric("perplexity", _column("nats"), _column("targets"), np.exp)
MSE = RatioMetric("mse", _column("square"), _column("values"))
BLEU = Bleu()
RMSE = RatioMetric("rmse", _column("square"), _column("values"), np.sqrt)


def choose_metric(kind: str, valid: Mapping[str, Any]) -> RatioMetric:
    """Return the metric of a kind of task; for tags and translations it depends on which metrics the validation has."""
    if kind == "tag":
        return SPANS if "span_f1" in valid else ACCURACY
    if kind == "translate" and "bleu" in valid:
        return BLEU
    kinds = {"classify": ACCURACY, "transcribe": ERRORS, "forecast": MSE, "regress": RMSE}
    return kinds.get(kind, PERPLEXITY)


def rank(kind: str, valid: Mapping[str, float | None]) -> tuple[float, float]:
    """Return a sort key, smallest first: BLEU or what selects the best weights, then the loss."""
    known = {name: math.inf if value is None else value for name, value in valid.items()}
    name = "bleu" if kind == "translate" and "bleu" in known else primary_metric(kind, known)
    value, loss = known.get(name, math.inf), known.get("loss", math.inf)
    return (-value if name in HIGHER_IS_BETTER and math.isfinite(value) else value), loss
