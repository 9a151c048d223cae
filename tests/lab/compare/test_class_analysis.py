import numpy as np
import pytest
from sklearn import metrics as sk

from seqloom.lab.kinds.decision import Decision
from seqloom.lab.kinds.pages.class_analysis import analyse_classes, draw_confusions, tabulate_classes
from seqloom.lab.report.page import Chart, Grid, Table
from seqloom.lab.report.values import tabulate
from seqloom.lab.stats.class_metrics import trace_precision, trace_reliability, trace_roc

RANDOM = np.random.default_rng(0)


def columns(n=500):
    """Test rows of a calibrated model of two classes."""
    q = RANDOM.random(n)
    y = (RANDOM.random(n) < q).astype(int)
    p = (q > 0.5).astype(int)
    confidence = np.maximum(q, 1 - q)
    return {"y": y, "p": p, "q": q, "is_positive": y, "right": p == y, "confidence": confidence}


def test_a_classifier_has_a_table_a_matrix_two_curves_and_its_reliability():
    decision = Decision(threshold=0.5, facts={"goal": "f1", "recall": 0.5, "precision": 0.5, "positives": 9})
    blocks = analyse_classes(("no", "yes"), columns(), decision)
    titles = ["Classes", "Confusion matrix", "ROC curve", "Precision and recall", "Reliability", "Decision"]
    assert [block.title for block in blocks] == titles


def test_precision_and_recall_of_classes_are_scikit_learns():
    y, p = RANDOM.integers(0, 3, 300), RANDOM.integers(0, 3, 300)
    table = tabulate_classes(("a", "b", "c"), y, p)
    for name, values in zip(
        ("precision", "recall", "F1", "rows"), sk.precision_recall_fscore_support(y, p), strict=True
    ):
        assert [row[name] for row in table.rows] == pytest.approx(values, abs=1e-4)


def test_a_confusion_matrix_has_counts_that_are_shown_as_shares_of_the_true_class():
    grid = draw_confusions(("a", "b"), np.array([0, 0, 0, 0, 1, -1]), np.array([0, 0, 0, 1, 1, 0]))
    assert isinstance(grid, Grid) and grid.by_row and grid.values == [[3, 1], [0, 1]]
    assert [list(row.values()) for row in tabulate(grid).rows] == [["a", 75.0, 25.0], ["b", 0.0, 100.0]]


def test_many_classes_list_the_worst():
    y = np.arange(400) % 40
    table = tabulate_classes(tuple(f"c{k}" for k in range(40)), y, np.where(y < 5, 39, y))
    assert isinstance(table, Table) and len(table.rows) == 30
    assert {row["class"] for row in table.rows[:5]} == {"c0", "c1", "c2", "c3", "c4"}


def test_curves_are_scikit_learns():
    c = columns(80)
    false, true, _ = sk.roc_curve(c["y"], c["q"], drop_intermediate=False)
    assert np.allclose(trace_roc(c["y"], c["q"]), [false, true])
    precision, recall, _ = sk.precision_recall_curve(c["y"], c["q"])
    assert np.allclose(trace_precision(c["y"], c["q"]), [recall[-2::-1], precision[-2::-1]])


def test_a_calibrated_model_is_near_the_line_and_an_overconfident_one_is_not():
    c = columns(20_000)
    assert trace_reliability(c["q"], c["y"], 10)[2] < 0.02
    sharp = c["q"] ** 4 / (c["q"] ** 4 + (1 - c["q"]) ** 4)
    assert trace_reliability(sharp, c["y"], 10)[2] > 0.1


def test_several_classes_have_the_reliability_of_the_predicted_one():
    c = {"y": np.array([0, 1, 2, 2]), "p": np.array([0, 1, 2, 1]), "confidence": np.array([0.9, 0.8, 0.7, 0.6])}
    blocks = analyse_classes(("a", "b", "c"), c | {"right": np.array([1.0, 1, 1, 0])}, Decision())
    chart = blocks[-1]
    assert isinstance(chart, Chart) and chart.x_label == "probability of the predicted class"
