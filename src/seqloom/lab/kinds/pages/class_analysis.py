"""Report blocks on a classifier's test rows: each class, confusions, curves of thresholds, and calibration."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.decision import Decision, explain_decision
from seqloom.lab.report.page import Chart, Curve, Grid, PageBlock, Table, Words
from seqloom.lab.stats.class_metrics import (
    describe_classes,
    describe_labels,
    trace_precision,
    trace_reliability,
    trace_roc,
)
from seqloom.lab.stats.metrics import Array

MATRIX_CLASSES = 30  # with more classes, the most frequent confusions and the worst classes are listed instead
CURVE_POINTS = 200
RELIABILITY_BINS = 10


def analyse_classes(names: tuple[str, ...], columns: Columns, decision: Decision) -> list[PageBlock]:
    """Return the blocks of a classifier."""
    blocks = [tabulate_classes(names, columns["y"], columns["p"]), draw_confusions(names, columns["y"], columns["p"])]
    if "is_positive" in columns:
        blocks += _draw_curves(names[decision.positive], columns["is_positive"], columns["q"])
    if "confidence" in columns:
        blocks.append(_draw_reliability(names, columns, decision))
    if text := explain_decision(names, decision):
        blocks.append(Words("Decision", text))
    return blocks


def tabulate_classes(names: tuple[str, ...], y: Array, p: Array) -> Table:
    """Tabulate precision and recall of each class, or of the worst ones."""
    return _tabulate("Classes", list(describe_classes(names, y, p)), "class")


def tabulate_labels(names: tuple[str, ...], columns: Columns) -> Table:
    """Tabulate precision and recall of each label, or of the worst ones, of rows that may have several."""
    return _tabulate("Labels", list(describe_labels(names, columns)), "label")


def _tabulate(title: str, rows: list[dict[str, Any]], unit: str) -> Table:
    precision, recall = f"share of the rows predicted as the {unit} that are of it", "share of its rows that are found"
    note = f"Precision: {precision}. Recall: {recall}."
    if len(rows) > MATRIX_CLASSES:
        tested = [row for row in rows if row["rows"]]
        worst = sorted(tested, key=lambda row: row["F1"] or 0.0)[:MATRIX_CLASSES]
        note = f"The {len(worst)} {title.lower()} of lowest F1, of {len(rows):,}. {note}"
        rows = worst
    return Table(title, rows, note)


def draw_confusions(names: tuple[str, ...], y: Array, p: Array) -> PageBlock:
    """Draw the confusion matrix, by shares of each true class, or list the most frequent confusions."""
    keep = y >= 0
    y, p = y[keep].astype(int), p[keep].astype(int)
    if len(names) <= MATRIX_CLASSES:
        counts = np.zeros((len(names), len(names)), dtype=int)
        np.add.at(counts, (y, p), 1)
        note = "Rows are true classes, columns predictions. Shades and percents are shares of the true class."
        return Grid("Confusion matrix", list(names), list(names), counts.tolist(), note, by_row=True)
    wrong = Counter(zip(y[y != p].tolist(), p[y != p].tolist(), strict=True))
    rows = [
        {"true": names[a], "predicted": names[b], "test examples": n} for (a, b), n in wrong.most_common(MATRIX_CLASSES)
    ]
    return Table("Most frequent confusions", rows or [{"true": "-", "predicted": "-", "test examples": 0}])


def _draw_curves(positive: str, is_positive: Array, q: Array) -> list[PageBlock]:
    """Draw the ROC and the precision-recall curve."""
    if not 0 < is_positive.sum() < len(is_positive):
        return []
    share = float(is_positive.mean())
    roc = _thin("model", *trace_roc(is_positive, q))
    precision = _thin("model", *trace_precision(is_positive, q))
    chance = Curve("chance", [0.0, 1.0], [0.0, 1.0])
    return [
        Chart("ROC curve", "false positive rate", "true positive rate", [roc, chance], note=f"Positive: {positive}."),
        Chart(
            "Precision and recall",
            "recall",
            "precision",
            [precision, Curve("chance", [0.0, 1.0], [share, share])],
            note=f"Of {positive}, at every threshold. Without a model, the precision is its share of the rows.",
        ),
    ]


def _thin(name: str, x: Array, y: Array) -> Curve:
    points = np.unique(np.linspace(0, len(x) - 1, min(CURVE_POINTS, len(x))).astype(int))
    return Curve(name, x[points].tolist(), y[points].tolist())


def _draw_reliability(names: tuple[str, ...], columns: Columns, decision: Decision) -> PageBlock:
    """Draw how often predictions of each probability are correct."""
    if "is_positive" in columns:
        p, right, what = columns["q"], columns["is_positive"], f"probability of {names[decision.positive]}"
    else:
        p, right, what = columns["confidence"], columns["right"], "probability of the predicted class"
    x, y, distance = trace_reliability(p, right, RELIABILITY_BINS)
    note = f"{len(x)} groups of test rows. The mean distance from the line is {distance:.3f}."
    facts = decision.facts
    if "log_loss" in facts and f"{decision.temperature:.3g}" == "1":
        note += f" Fitted on {facts['rows']:,} validation rows, the temperature is 1: probabilities stay as they are."
    elif "log_loss" in facts:
        note += (
            f" A temperature of {decision.temperature:.3g}, fitted on {facts['rows']:,} validation rows, changed "
            f"their log loss from {facts['log_loss_before']:.4g} to {facts['log_loss']:.4g}."
        )
    curves = [Curve("model", x.tolist(), y.tolist()), Curve("calibrated", [0.0, 1.0], [0.0, 1.0])]
    return Chart("Reliability", what, "share of rows that are right", curves, note=note)
