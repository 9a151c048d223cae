"""Metrics of a whole split from what each row adds to them, with bootstrap intervals.

A row adds plain sums: how many targets were right, how large its squared error was, how many chunks
were found. Every metric is a function of these sums over all rows,

    loss        nats / targets                       perplexity   exp(loss)         bits   loss / log 2
    accuracy    right / scored                       exact        exact / rows
    span_f1     2 found / (said + there)             macro_f1     mean over classes of 2 tp / (2 tp + fp + fn)
    mse         square / values                      mae          absolute / values     rmse   sqrt(mse)
    mase        scaled / series                      cer, wer     edits / symbols
    bleu        from matches and totals of 1- to 4-grams and both lengths (sacrebleu)

so that an interval follows from adding the rows up again, drawn with replacement (Efron 1979); rows that overlap,
as windows of a series do, are drawn together (Kuensch 1989). A share of rows has Wilson's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seqloom.lab.stats.interval import share, tail

Array = np.ndarray[Any, Any]
Sums = Mapping[str, Array]  # name -> (...,)
DRAWS = 1000
WORK = 50_000_000  # rows drawn in all, at most: a very large split needs fewer draws
HIGHER = frozenset({"accuracy", "macro_f1", "span_f1", "exact", "bleu"})  # of the rest less is better
RATES = {"accuracy": ("right", "scored"), "exact": ("exact", "rows")}  # of rows, where each counts for one
ENDS = frozenset({"accuracy", "exact", "macro_f1", "span_f1"})  # from 0 to 1
NGRAMS = 4


@dataclass(frozen=True)
class Scores:
    """Values by name, and the 95% interval of each where it was asked for."""

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    rows: int = 0


def primary(kind: str, values: Mapping[str, float]) -> str:
    """The metric by which the best weights are chosen."""
    for name in {"classify": ("accuracy",), "tag": ("span_f1", "accuracy"), "transcribe": ("cer",)}.get(kind, ()):
        if name in values:
            return name
    return "loss"


def better(name: str, value: float, than: float) -> bool:
    """NaN is never better, and anything is better than NaN."""
    if math.isnan(value) or math.isnan(than):
        return math.isnan(than) and not math.isnan(value)
    return value > than if name in HIGHER else value < than


def scores(rows: Mapping[str, Array], intervals: bool = False, seed: int = 0, block: int = 1) -> Scores:
    """Every metric that these columns, one entry a row, are enough for; `block` neighbours are drawn together."""
    columns = {name: column for name, column in rows.items() if name not in ("y", "p")}
    pairs = (rows["y"], rows["p"]) if "y" in rows else None
    n = len(next(iter(rows.values()), ()))
    point = _all({name: column.sum(0) for name, column in columns.items()}, pairs, np.ones(n))
    found = {name: float(value) for name, value in point.items()}
    blocks = -(-n // block)
    if not intervals or blocks < 2:
        return Scores(found, rows=n)
    random, drawn = np.random.default_rng(seed), []
    for _ in range(max(100, min(DRAWS, WORK // n))):
        w = np.bincount(random.integers(blocks, size=blocks), minlength=blocks).repeat(block)[:n].astype(np.float64)
        drawn.append(_all({name: w @ column for name, column in columns.items()}, pairs, w))
    low = tail(blocks)
    with np.errstate(invalid="ignore"):
        ends = {name: np.nanquantile([d[name] for d in drawn], (low, 1 - low)) for name in _known(found)}
    known = {name: (float(low), float(high)) for name, (low, high) in ends.items()}
    return Scores(found, known | _shares(found, columns, known, blocks), n)


def _shares(
    found: Mapping[str, float], columns: Sums, known: Mapping[str, tuple[float, float]], n: int
) -> dict[str, tuple[float, float]]:
    """Intervals of what is a share of rows; and of what no draw has moved, for all rows are right, or none is."""
    rates = [name for name, (_, below) in RATES.items() if name in known and (columns[below] == 1).all()]
    stuck = [name for name in ENDS & known.keys() if known[name][0] == known[name][1] and found[name] in (0.0, 1.0)]
    return {name: share(found[name], n) for name in {*rates, *stuck}}


def _known(found: Mapping[str, float]) -> list[str]:
    return [name for name, value in found.items() if math.isfinite(value)]


def _all(sums: Sums, pairs: tuple[Array, Array] | None, w: Array) -> dict[str, Any]:
    found = {name: formula(sums) for name, (needs, formula) in FORMULAS.items() if needs in sums}
    if pairs is not None:
        found["macro_f1"] = macro_f1(*pairs, w)
    return found


def macro_f1(y: Array, p: Array, w: Array) -> float:
    """The mean over all classes that occur with a weight; a y below 0 is wrong whatever was said."""
    classes = np.union1d(y[y >= 0], p)
    if not len(classes):
        return math.nan
    said, right = np.searchsorted(classes, p), p == y
    tp = np.bincount(said[right], w[right], len(classes))
    known = y >= 0
    there = np.bincount(np.searchsorted(classes, y[known]), w[known], len(classes))
    both = there + np.bincount(said, w, len(classes))  # 2 tp + fp + fn
    return float(np.mean(2 * tp[both > 0] / both[both > 0])) if both.any() else math.nan


def _over(above: str, below: str) -> tuple[str, Callable[[Sums], Any]]:
    return above, lambda s: s[above] / s[below] if s[below] else math.nan


def _bleu(sums: Sums) -> float:
    from sacrebleu.metrics.bleu import BLEU

    said, there, *counts = (int(n) for n in sums["bleu"])
    return BLEU.compute_bleu(counts[:NGRAMS], counts[NGRAMS:], said, there).score


FORMULAS: dict[str, tuple[str, Callable[[Sums], Any]]] = {
    "loss": _over("nats", "targets"),
    "perplexity": (
        "language",
        lambda s: math.exp(min(float(s["nats"] / s["targets"]), 700.0)) if s["targets"] else math.nan,
    ),
    "bits": ("language", lambda s: s["nats"] / s["targets"] / math.log(2) if s["targets"] else math.nan),
    "accuracy": _over("right", "scored"),
    "exact": _over("exact", "rows"),
    "span_f1": ("found", lambda s: 2 * s["found"] / max(1.0, s["said"] + s["there"])),
    "mse": _over("square", "values"),
    "rmse": ("square", lambda s: math.sqrt(s["square"] / s["values"]) if s["values"] else math.nan),
    "mae": _over("absolute", "values"),
    "mase": _over("scaled", "series"),
    "cer": _over("letter_edits", "letters"),
    "wer": _over("word_edits", "words"),
    "bleu": ("bleu", _bleu),
}
