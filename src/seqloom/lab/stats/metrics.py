"""Metrics of a whole split, computed from columns with one entry per row, with bootstrap intervals.

Most metrics are functions of sums over rows: correct targets, squared errors, spans found. Some need the rows
themselves (`class_metrics`). `METRICS` lists all of them:

    loss        nats / targets                       perplexity   exp(loss)         bits   loss / log 2
    accuracy    right / scored                       exact        exact / rows
    span_f1     2 right / (predicted + true) spans   macro_f1     mean over classes or labels of 2 tp / (2 tp + fp + fn)
    micro_f1    2 right / (predicted + true) labels
    f1, auroc, average_precision   of the positive class; with more than two classes, means over one against the rest
    balanced_accuracy              mean over classes of the recall
    mse         square / values                      mae          absolute / values     rmse   sqrt(mse)
    mase        scaled / series                      cer, wer     edits / symbols
    smape       relative / values                    coverage     inside / bounded values, of an interval
    bleu, chrf  from n-grams (`ngrams`)

To add a metric, add a `Metric` to `METRICS`, and its name and its columns to the kinds in `lab.kinds`.

Intervals come from resampled rows (`resampling`). A share of rows has Wilson's interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seqloom.lab.stats import class_metrics as classes
from seqloom.lab.stats.forecasts import LEVELS
from seqloom.lab.stats.intervals import wilson_interval
from seqloom.lab.stats.ngrams import compute_bleu, compute_chrf
from seqloom.lab.stats.resampling import count_blocks, draw_weights, find_interval

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Array]  # name -> (n, ...)
DRAWS = 1000
MAX_DRAWN_ROWS = 50_000_000  # over all draws: a very large split needs fewer draws
SHORT_TITLES = {"balanced_accuracy": "bal. acc.", "average_precision": "avg. prec."}
SHORT_TITLES |= {"exact": "exact", "cer": "CER", "wer": "WER"}
LARGEST_EXPONENT = 700.0  # exponent of a perplexity, below float64's overflow


@dataclass(frozen=True)
class Metric:
    """A metric of rows."""

    name: str  # its name in files and flags
    title: str  # its name in headings and sentences
    needs: tuple[str, ...]  # the columns it is computed from
    formula: Callable[[Columns, Array], Array]  # maps columns and weights (R, n) to (R,) values
    higher: bool = False  # whether more is better
    percent: bool = False  # whether it is a share between 0 and 1 (an error rate may exceed 1), written in percent
    # The columns of the numerator and the denominator, if it is a share of rows in which each row counts once.
    share: tuple[str, str] | None = None
    others: tuple[str, ...] = ()  # the columns it is computed from instead, if there is another way

    @property
    def heading(self) -> str:
        """The title, abbreviated for a narrow table."""
        return SHORT_TITLES.get(self.name, self.title)

    def fits(self, columns: Columns) -> bool:
        """Return whether the columns suffice to compute it."""
        return any(needs and all(name in columns for name in needs) for needs in (self.needs, self.others))

    def compute(self, columns: Columns, weights: Array) -> Array:
        """Return the metric of each weighting of the rows; weights (R, n)."""
        return np.asarray(self.formula(columns, weights), dtype=np.float64)

    def clip(self, end: float) -> float:
        """Clip the end of an interval to the range of the metric."""
        if self.name == "loss":  # the loss of a density may be negative
            return end
        return min(1.0, max(0.0, end)) if self.percent and self.higher else max(0.0, end)

    def format(self, value: float | None) -> str:
        """Format a value: 93.1% or 0.1234; "-" if it is unknown."""
        if value is None or not math.isfinite(value):
            return "-"
        return f"{value:.1%}" if self.percent else f"{value:.4g}"

    def format_difference(self, value: float, sign: bool = False, half: float = 0.0) -> str:
        """Format a difference without its unit: 1.8 for 1.8 percentage points.

        Args:
            sign: Whether to keep a minus.
            half: Half of the interval that is printed beside it, whose decimals it gets; 0 if there is none.
        """
        size = abs(value)
        text = f"{100 * size:.1f}" if self.percent else f"{size:.0f}" if 100 <= size < 1e6 else f"{size:.2g}"
        if not self.percent and 1e-4 <= half < 100 and size < 1e6:
            text = f"{size:.{max(0, 1 - math.floor(math.log10(half)))}f}"
        return f"-{text}" if sign and value < 0 and float(text) else text

    @property
    def unit(self) -> str:
        """The unit of a difference, after a space."""
        return " percentage points" if self.percent else f" in {self.title}"


@dataclass(frozen=True)
class Scores:
    """Metrics by name, and the 95% interval of each if intervals were computed."""

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    rows: int = 0


def _divide(above: Array, below: Array) -> Array:
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)


def _ratio(above: str, below: str) -> Callable[[Columns, Array], Array]:
    return lambda c, w: _divide(w @ c[above], w @ c[below])


def _rate(name: str, title: str, above: str, below: str, *, higher: bool = True, by_row: bool = False) -> Metric:
    return Metric(name, title, (above, below), _ratio(above, below), higher, True, (above, below) if by_row else None)


def _f1(name: str, title: str, what: str) -> Metric:
    right, predicted, true = needs = (f"{what}_right", f"{what}_predicted", f"{what}_true")

    def compute(c: Columns, w: Array) -> Array:
        return 2 * (w @ c[right]) / np.maximum(1.0, w @ c[predicted] + w @ c[true])

    return Metric(name, title, needs, compute, True, True)


def _macro_f1(c: Columns, w: Array) -> Array:
    if "label_right" in c:
        return classes.macro_f1_of_labels(c["label_true"], c["label_predicted"], c["label_right"], w)
    return classes.macro_f1(c["y"], c["p"], w)


def _perplexity(c: Columns, w: Array) -> Array:
    return np.exp(np.minimum(_divide(w @ c["nats"], w @ c["targets"]), LARGEST_EXPONENT))


def _rank(metric: Callable[[Array, Array, Array], Array]) -> Callable[[Columns, Array], Array]:
    """Return the formula of a metric of ranks: of the positive class, or the mean over more than two classes."""
    return lambda c, w: (
        metric(c["is_positive"], c["q"], w)
        if "is_positive" in c
        else classes.average_over_classes(metric, c["y"], c["q"], w)
    )


_ALL = (
    Metric("loss", "log loss", ("nats", "targets"), _ratio("nats", "targets")),
    Metric("perplexity", "perplexity", ("nats", "targets", "language"), _perplexity),
    Metric("bits", "bits", ("nats", "targets", "language"), lambda c, w: _ratio("nats", "targets")(c, w) / math.log(2)),
    _rate("accuracy", "accuracy", "right", "scored", by_row=True),
    Metric(
        "balanced_accuracy",
        "balanced accuracy",
        ("y", "p"),
        lambda c, w: classes.balanced_accuracy(c["y"], c["p"], w),
        True,
        True,
    ),
    Metric("macro_f1", "macro F1", ("y", "p"), _macro_f1, True, True, others=("label_right",)),
    _f1("micro_f1", "micro F1", "labels"),
    Metric(
        "f1",
        "F1",
        ("is_positive", "says_positive"),
        lambda c, w: classes.f1(c["is_positive"], c["says_positive"], w),
        True,
        True,
    ),
    Metric("auroc", "AUROC", ("y", "q"), _rank(classes.auroc), True, True),
    Metric("average_precision", "average precision", ("y", "q"), _rank(classes.average_precision), True, True),
    _rate("exact", "exact match", "exact", "rows", by_row=True),
    _f1("span_f1", "span F1", "spans"),
    Metric("mse", "MSE", ("square", "values"), _ratio("square", "values")),
    Metric("rmse", "RMSE", ("square", "values"), lambda c, w: np.sqrt(_ratio("square", "values")(c, w))),
    Metric("mae", "MAE", ("absolute", "values"), _ratio("absolute", "values")),
    Metric("mase", "MASE", ("scaled", "series"), _ratio("scaled", "series")),
    _rate("smape", "sMAPE", "relative", "values", higher=False),
    *(
        _rate(f"coverage_{level}", f"coverage of the {level}% interval", f"inside_{level}", f"bounded_{level}")
        for level in LEVELS
    ),
    _rate("cer", "character error rate", "letter_edits", "letters", higher=False),
    _rate("wer", "word error rate", "word_edits", "words", higher=False),
    Metric("bleu", "BLEU", ("bleu",), lambda c, w: compute_bleu(w @ c["bleu"]), True),
    Metric("chrf", "chrF", ("chrf",), lambda c, w: compute_chrf(w @ c["chrf"]), True),
)
METRICS = {metric.name: metric for metric in _ALL}


def is_better(name: str, value: float, than: float) -> bool:
    """Return whether a value of a metric is better; NaN is worse than any number."""
    if math.isnan(value) or math.isnan(than):
        return math.isnan(than) and not math.isnan(value)
    return value > than if METRICS[name].higher else value < than


def compute_scores(rows: Columns, intervals: bool = False, seed: int = 0, overlap: int = 1) -> Scores:
    """Compute every metric that the columns allow.

    Args:
        intervals: Whether to compute 95% intervals.
        overlap: Number of neighbouring rows that share steps of a series.
    """
    metrics = [metric for metric in METRICS.values() if metric.fits(rows)]
    n = len(next(iter(rows.values()), ()))
    values = {metric.name: float(metric.compute(rows, np.ones((1, n)))[0]) for metric in metrics}
    blocks = count_blocks(n, overlap)
    if not intervals or blocks < 2:
        return Scores(values, rows=n)
    finite = [metric for metric in metrics if math.isfinite(values[metric.name])]
    count = max(100, min(DRAWS, MAX_DRAWN_ROWS // n))
    parts = [[metric.compute(rows, w) for metric in finite] for w in draw_weights(n, overlap, count, seed)]
    bootstrap = {}
    for metric, drawn in zip(finite, zip(*parts, strict=True), strict=True):
        resampled = np.concatenate(drawn)
        low, high = find_interval(values[metric.name], resampled, blocks)
        if math.isfinite(low):
            bootstrap[metric.name] = metric.clip(low), metric.clip(high)
    return Scores(values, bootstrap | _wilson_intervals(values, rows, bootstrap, blocks), n)


def _wilson_intervals(
    values: Mapping[str, float], columns: Columns, bootstrap: Mapping[str, tuple[float, float]], n: int
) -> dict[str, tuple[float, float]]:
    """Return intervals of shares of rows, and of metrics that are 0 or 1 in every draw."""
    names = [name for name in bootstrap if METRICS[name].percent and METRICS[name].higher]
    rates = [name for name in names if is_share_of_rows(METRICS[name], columns)]
    stuck = [name for name in names if bootstrap[name][0] == bootstrap[name][1] and values[name] in (0.0, 1.0)]
    return {name: wilson_interval(values[name], n) for name in {*rates, *stuck}}


def is_share_of_rows(metric: Metric, columns: Columns) -> bool:
    """Return whether the metric is a share of rows in which each of these rows counts once."""
    return metric.share is not None and bool((columns[metric.share[1]] == 1).all())
