import math

import pytest

from seqloom.lab.stats.interval import Interval, interval


def test_two_values_give_the_t_interval_with_one_degree_of_freedom():
    found = interval([1.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(12.706 * math.sqrt(2) / math.sqrt(2), rel=1e-4)
    assert found.n == 2


def test_five_values_give_the_t_interval_with_four_degrees_of_freedom():
    values = [0.1, 0.4, 0.2, 0.5, 0.3]
    assert interval(values).half == pytest.approx(2.7764 * math.sqrt(0.025) / math.sqrt(5), rel=1e-4)


def test_one_value_has_no_interval():
    assert interval([0.7]) == Interval(0.7, None, 1)
