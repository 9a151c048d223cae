"""Whether rows are steps in time."""

import numpy as np
import polars as pl
import pytest

from seqloom.lab.data.pipeline.long_tables import FEWEST_ROWS, LAGS, have_order


def make_rows(lag, n=2000):
    """Return rows that depend on the one so many rows before, and on no others."""
    x = np.random.default_rng(0).normal(size=n)
    for t in range(lag, n):
        x[t] += 0.6 * x[t - lag]
    return pl.DataFrame({"x": x})


def shuffle(rows):
    return rows.sample(fraction=1.0, shuffle=True, seed=0)


@pytest.mark.parametrize("lag", [1, 7, LAGS])
def test_rows_that_depend_on_earlier_ones_are_in_order(lag):
    assert have_order(make_rows(lag), ["x"])
    assert not have_order(shuffle(make_rows(lag)), ["x"])


def test_rows_that_depend_on_one_more_than_twelve_rows_before_are_not_found():
    assert not have_order(make_rows(13), ["x"])


def test_a_few_rows_are_taken_to_be_in_order():
    rows = shuffle(make_rows(1))
    assert have_order(rows[: FEWEST_ROWS - 1], ["x"])
    assert not have_order(rows[:FEWEST_ROWS], ["x"])


def test_labels_that_last_are_in_order():
    labels = pl.DataFrame({"label": ["a"] * 50 + ["b"] * 50 + ["a"] * 50})
    assert have_order(labels, [], ["label"])
    assert not have_order(shuffle(labels), [], ["label"])


def test_a_table_sorted_by_its_label_is_in_no_order_otherwise():
    noise = np.random.default_rng(1).normal(size=200)
    rows = pl.DataFrame({"x": noise + 9 * (np.arange(200) >= 100)})
    assert have_order(rows, ["x"])
    assert not have_order(rows.with_columns(x=pl.Series(noise)), ["x"])
