"""Metrics of a whole split, computed from sums over rows, with bootstrap intervals.

A row contributes plain sums: correct targets, squared errors, spans found. Every metric is a function of these sums
over all rows:

    loss        nats / targets                       perplexity   exp(loss)         bits   loss / log 2
    accuracy    right / scored                       exact        exact / rows
    span_f1     2 right / (predicted + true) spans   macro_f1     mean over classes of 2 tp / (2 tp + fp + fn)
    mse         square / values                      mae          absolute / values     rmse   sqrt(mse)
    mase        scaled / series                      cer, wer     edits / symbols
    bleu        from matches and totals of 1- to 4-grams and both lengths (sacrebleu)

An interval comes from summing rows that are drawn with replacement (Efron 1979). Rows that overlap, such as windows
of a series, are drawn in blocks (Kuensch 1989). A share of rows has Wilson's interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seqloom.lab.stats.intervals import tail_quantile, wilson_interval

Array = np.ndarray[Any, Any]
Sums = Mapping[str, Array]  # name -> (...,)
DRAWS = 1000
MAX_DRAWN_ROWS = 50_000_000  # over all draws: a very large split needs fewer draws
HIGHER_IS_BETTER = frozenset({"accuracy", "macro_f1", "span_f1", "exact", "bleu"})  # all others: lower is better
RATES = {"accuracy": ("right", "scored"), "exact": ("exact", "rows")}  # shares of rows if each row counts once
FROM_0_TO_1 = frozenset({"accuracy", "exact", "macro_f1", "span_f1"})
NGRAMS = 4
STARTS, ENDS = frozenset("OBSU"), frozenset("ELSU")  # a tag that starts a new span, and one after which a span ends
PRIMARY = {"classify": ("accuracy",), "tag": ("span_f1", "accuracy"), "transcribe": ("cer",)}


@dataclass(frozen=True)
class Scores:
    """Metrics by name, and the 95% interval of each if intervals were computed."""

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    rows: int = 0


def primary_metric(kind: str, values: Mapping[str, float]) -> str:
    """Return the name of the metric that selects the best weights."""
    return next((name for name in PRIMARY.get(kind, ()) if name in values), "loss")


def is_better(name: str, value: float, than: float) -> bool:
    """Return whether a value of a metric is better; NaN is worse than any number."""
    if math.isnan(value) or math.isnan(than):
        return math.isnan(than) and not math.isnan(value)
    return value > than if name in HIGHER_IS_BETTER else value < than


def compute_scores(rows: Mapping[str, Array], intervals: bool = False, seed: int = 0, block: int = 1) -> Scores:
    """Compute every metric that the columns allow.

    Args:
        rows: Columns by name, one entry per row.
        intervals: Whether to compute 95% intervals.
        seed: Seed of the bootstrap.
        block: Number of neighbouring rows to draw together.
    """
    columns = {name: column for name, column in rows.items() if name not in ("y", "p")}
    pairs = (rows["y"], rows["p"]) if "y" in rows else None
    n = len(next(iter(rows.values()), ()))
    point = _compute_all({name: column.sum(0) for name, column in columns.items()}, pairs, np.ones(n))
    values = {name: float(value) for name, value in point.items()}
    blocks = -(-n // block)
    if not intervals or blocks < 2:
        return Scores(values, rows=n)
    random, draws = np.random.default_rng(seed), []
    for _ in range(max(100, min(DRAWS, MAX_DRAWN_ROWS // n))):
        w = np.bincount(random.integers(blocks, size=blocks), minlength=blocks).repeat(block)[:n].astype(np.float64)
        draws.append(_compute_all({name: w @ column for name, column in columns.items()}, pairs, w))
    low, finite = tail_quantile(blocks), [name for name, value in values.items() if math.isfinite(value)]
    with np.errstate(invalid="ignore"):
        ends = {name: np.nanquantile([draw[name] for draw in draws], (low, 1 - low)) for name in finite}
    bootstrap = {name: (float(low), float(high)) for name, (low, high) in ends.items()}
    return Scores(values, bootstrap | _wilson_intervals(values, columns, bootstrap, blocks), n)


def _wilson_intervals(
    values: Mapping[str, float], columns: Sums, bootstrap: Mapping[str, tuple[float, float]], n: int
) -> dict[str, tuple[float, float]]:
    """Return intervals of shares of rows, and of metrics that no draw has moved from 0 or 1."""
    rates = [name for name, (_, below) in RATES.items() if name in bootstrap and (columns[below] == 1).all()]
    stuck = [
        name
        for name in FROM_0_TO_1 & bootstrap.keys()
        if bootstrap[name][0] == bootstrap[name][1] and values[name] in (0.0, 1.0)
    ]
    return {name: wilson_interval(values[name], n) for name in {*rates, *stuck}}


def _compute_all(sums: Sums, pairs: tuple[Array, Array] | None, w: Array) -> dict[str, Any]:
    values = {name: formula(sums) for name, (needs, formula) in FORMULAS.items() if needs in sums}
    if pairs is not None:
        values["macro_f1"] = macro_f1(*pairs, w)
    return values


def macro_f1(y: Array, p: Array, w: Array) -> float:
    """Return the mean F1 over all classes that occur with a weight; rows with y < 0 are always wrong."""
    classes = np.union1d(y[y >= 0], p)
    if not len(classes):
        return math.nan
    predicted, right = np.searchsorted(classes, p), p == y
    tp = np.bincount(predicted[right], w[right], len(classes))
    known = y >= 0
    true = np.bincount(np.searchsorted(classes, y[known]), w[known], len(classes))
    both = true + np.bincount(predicted, w, len(classes))  # 2 tp + fp + fn
    return float(np.mean(2 * tp[both > 0] / both[both > 0])) if both.any() else math.nan


def find_spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Return the spans (start, end, kind) of a row of tags by conlleval's rules.

    I- after O or after another kind starts a span too. E- and L- end a span; S- and U- are spans of one step.
    """
    spans, start, kind, before = set(), 0, "", "O"
    for t, tag in enumerate([*tags, "O"]):
        prefix, _, now = tag.partition("-")
        if kind and (prefix in STARTS or before in ENDS or now != kind):
            spans.add((start, t, kind))
            kind = ""
        if prefix != "O" and not kind:
            start, kind = t, now
        before = prefix
    return spans


def count_spans(true: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
    """Return how many spans of one row are right, predicted and true."""
    there, claimed = find_spans(true), find_spans(predicted)
    return len(there & claimed), len(claimed), len(there)


def span_f1(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Return 2 right / (predicted + true) over the spans of all rows, between 0 and 1."""
    rows = [count_spans(t, p) for t, p in zip(true, predicted, strict=True)]
    right, claimed, there = (sum(row[i] for row in rows) for i in range(3))
    return 2 * right / max(1, claimed + there)


def _ratio(above: str, below: str) -> tuple[str, Callable[[Sums], Any]]:
    return above, lambda s: s[above] / s[below] if s[below] else math.nan


def compute_bleu(sums: Array) -> Array:
    """Return the corpus BLEU, 0 to 100, of sums (..., 10) over rows, as sacrebleu does.

    The sums are the length of the translations, that of the references, and the matches and totals of 1- to 4-grams.
    It is 0 if an order has no match.
    """
    written, reference, matches, totals = sums[..., 0], sums[..., 1], sums[..., 2 : 2 + NGRAMS], sums[..., 2 + NGRAMS :]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.exp(np.log(matches / totals).mean(-1))
        brevity = np.where(written < reference, np.exp(1 - reference / written), 1.0)
    return np.where((matches > 0).all(-1), 100 * brevity * precision, 0.0)


FORMULAS: dict[str, tuple[str, Callable[[Sums], Any]]] = {
    "loss": _ratio("nats", "targets"),
    "perplexity": (
        "language",
        lambda s: math.exp(min(float(s["nats"] / s["targets"]), 700.0)) if s["targets"] else math.nan,
    ),
    "bits": ("language", lambda s: s["nats"] / s["targets"] / math.log(2) if s["targets"] else math.nan),
    "accuracy": _ratio("right", "scored"),
    "exact": _ratio("exact", "rows"),
    "span_f1": ("spans_right", lambda s: 2 * s["spans_right"] / max(1.0, s["spans_predicted"] + s["spans_true"])),
    "mse": _ratio("square", "values"),
    "rmse": ("square", lambda s: math.sqrt(s["square"] / s["values"]) if s["values"] else math.nan),
    "mae": _ratio("absolute", "values"),
    "mase": _ratio("scaled", "series"),
    "cer": _ratio("letter_edits", "letters"),
    "wer": _ratio("word_edits", "words"),
    "bleu": ("bleu", lambda s: compute_bleu(s["bleu"])),
}
