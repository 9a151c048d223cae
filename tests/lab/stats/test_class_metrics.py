"""Metrics of classes against scikit-learn, for several weightings of the rows at once."""

import numpy as np
import pytest
from sklearn import metrics as sk

from seqloom.lab.stats import class_metrics
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.stats.ngrams import compute_chrf, count_characters

RANDOM = np.random.default_rng(0)
Y, Q = RANDOM.integers(0, 2, 120), RANDOM.random(120).round(1)  # with ties
WEIGHTS = RANDOM.integers(0, 4, (5, 120)).astype(float)


@pytest.mark.parametrize(
    ("metric", "reference"),
    [(class_metrics.auroc, sk.roc_auc_score), (class_metrics.average_precision, sk.average_precision_score)],
)
def test_areas_under_curves_are_scikit_learns(metric, reference):
    expected = [reference(Y, Q, sample_weight=w) for w in WEIGHTS]
    assert metric(Y == 1, Q, WEIGHTS) == pytest.approx(expected)


def test_balanced_accuracy_and_f1_are_scikit_learns():
    p = (Q > 0.4).astype(int)
    expected = [sk.balanced_accuracy_score(Y, p, sample_weight=w) for w in WEIGHTS]
    assert class_metrics.balanced_accuracy(Y, p, WEIGHTS) == pytest.approx(expected)
    assert class_metrics.f1(Y, p, WEIGHTS) == pytest.approx([sk.f1_score(Y, p, sample_weight=w) for w in WEIGHTS])


def test_areas_of_several_classes_are_means_over_one_against_the_rest():
    y, q = RANDOM.integers(0, 3, 200), RANDOM.dirichlet(np.ones(3), 200)
    values = compute_scores({"y": y, "p": q.argmax(1), "q": q}).values
    assert values["auroc"] == pytest.approx(sk.roc_auc_score(y, q, multi_class="ovr"))
    assert values["average_precision"] == pytest.approx(sk.average_precision_score(np.eye(3)[y], q))


def test_rows_of_one_class_have_no_area_and_do_not_spoil_the_interval():
    assert np.isnan(class_metrics.auroc(np.ones(3), np.arange(3.0), np.ones((1, 3)))).all()
    y = (np.arange(40) == 7).astype(int)  # many resamples lack the only positive row
    columns = {"y": y, "p": y, "q": y * 0.8, "is_positive": y, "says_positive": y}
    low, high = compute_scores(columns, intervals=True).intervals["average_precision"]
    assert np.isfinite(low) and np.isfinite(high)


def test_chrf_is_sacrebleus():
    from sacrebleu.metrics import CHRF

    true = ["the cat sat on the mat", "ein Haus", "a"]
    written = ["the cat is on a mat", "das Haus", ""]
    sums = np.sum([count_characters(t, w) for t, w in zip(true, written, strict=True)], 0)
    assert compute_chrf(sums) == pytest.approx(CHRF().corpus_score(written, [true]).score)
