"""Conformal intervals and errors of forecasts."""

import math

import numpy as np
import pytest

from seqloom.lab.stats.forecasts import conformal_quantile, count_inside, fit_widths, sum_relative_errors


@pytest.mark.parametrize(("n", "level"), [(4, 0.8), (19, 0.95), (50, 0.8), (50, 0.95)])
def test_a_conformal_quantile_covers_as_often_as_it_promises(n, level):
    random = np.random.default_rng(0)
    scores = random.exponential(size=(20_000, n + 1))
    inside = [
        new <= conformal_quantile(row, level) for *row, new in map(np.array, scores[:2_000]) for row in [np.array(row)]
    ]
    rank = math.ceil(round((n + 1) * level, 9))
    assert np.mean(inside) == pytest.approx(rank / (n + 1), abs=0.03)  # at least the level, exactly rank / (n + 1)
    assert rank / (n + 1) >= level


def test_too_few_scores_have_no_interval():
    assert conformal_quantile(np.arange(18.0), 0.95) == math.inf
    assert conformal_quantile(np.arange(19.0), 0.95) == 18.0
    assert conformal_quantile(np.array([np.nan, 1.0, 2.0, 3.0, 4.0]), 0.8) == 4.0


def test_steps_with_enough_windows_have_their_own_width_and_others_use_their_neighbours():
    random = np.random.default_rng(0)
    scores = random.random((60, 5, 1)) * np.arange(1.0, 6.0)[:, None]
    widths = fit_widths(scores, 0.8)[:, 0]
    assert [conformal_quantile(scores[:, s, 0], 0.8) for s in range(5)] == widths.tolist()
    few = fit_widths(scores[:20], 0.8)[:, 0]
    assert few[2] == conformal_quantile(scores[:20, 1:4].ravel(), 0.8)
    assert np.isinf(fit_widths(scores[:2], 0.95)).all()


def test_relative_errors_are_symmetric_and_two_zeros_are_no_error():
    y, p = np.array([[1.0, 0.0, np.nan], [2.0, 0.0, 4.0]]), np.array([[3.0, 0.0, 1.0], [2.0, 5.0, 4.0]])
    assert sum_relative_errors(y, p).tolist() == [1.0, 2.0]
    assert sum_relative_errors(p[1:], y[1:]).tolist() == [2.0]


def test_values_without_an_interval_or_truth_are_not_counted():
    y = np.array([[1.0, 5.0, np.nan, 2.0]])
    low, high = np.array([[0.0, 0.0, 0.0, -np.inf]]), np.array([[2.0, 2.0, 2.0, np.inf]])
    assert {name: column.tolist() for name, column in count_inside(y, {80: (low, high)}).items()} == {
        "inside_80": [1.0],
        "bounded_80": [2.0],
    }
