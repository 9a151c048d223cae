import math

import pytest
import torch
from scipy import stats as scipy_stats

from research.studies.support.summary import holm, summarise
from seqloom.lab.stats.intervals import Interval, mean_interval


def test_two_values_give_the_t_interval_with_one_degree_of_freedom():
    actual = mean_interval([1.0, 3.0])
    assert actual.mean == 2.0
    assert actual.half == pytest.approx(12.706 * math.sqrt(2) / math.sqrt(2), rel=1e-4)
    assert actual.n == 2


def test_five_values_give_the_t_interval_with_four_degrees_of_freedom():
    values = [0.1, 0.4, 0.2, 0.5, 0.3]
    assert mean_interval(values).half == pytest.approx(2.7764 * math.sqrt(0.025) / math.sqrt(5), rel=1e-4)


def test_one_value_has_no_interval():
    assert mean_interval([0.7]) == Interval(0.7, None, 1)


def normal(n, seed):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


def test_a_summary_is_scipys_t_interval_and_counts_the_failed():
    values = normal(7, 0)
    low, high = scipy_stats.t.interval(0.95, 6, sum(values) / 7, scipy_stats.sem(values))
    actual = summarise([None, *values, math.inf, math.nan])
    assert (actual.mean, actual.low, actual.high) == pytest.approx((sum(values) / 7, low, high), rel=1e-12)
    assert (actual.n, actual.failed) == (7, 3)


def test_one_value_has_no_interval_and_none_has_no_mean():
    one, none = summarise([2.5, None]), summarise([None, None])
    assert (one.mean, one.low, one.high, one.n, one.failed) == (2.5, None, None, 1, 1)
    assert (none.mean, none.n, none.failed) == (None, 0, 2)


def test_holms_correction_matches_a_calculation_by_hand():
    # 0.01 * 4, 0.03 * 3, 0.035 * 2 (below the one before it, so 0.09), 0.8 * 1.
    assert holm([0.03, 0.8, None, 0.01, 0.035]) == pytest.approx([0.09, 0.8, None, 0.04, 0.09])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_missing_p_value_does_not_change_the_others():
    assert holm([math.nan, 0.01, 0.02]) == pytest.approx([None, 0.02, 0.02])
