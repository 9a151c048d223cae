"""Tables of series: several below each other, and too few rows for the usual windows."""

import numpy as np
import polars as pl
import pytest

from seqloom import Run
from seqloom.lab.fit import fit
from seqloom.tasks.registry import open_task

SMALL = {"lookback": 8, "horizon": 2}
DAYS = [f"2026-01-{d:02d}" for d in range(1, 32)]


def table(**more):
    """Two shops, day by day: one sells about 0, the other about 100."""
    n = len(DAYS)
    sold = [float(v) + 100 * s for s in range(2) for v in np.random.default_rng(s).random(n)]
    return pl.DataFrame({"day": DAYS * 2, "sold": sold} | more)


@pytest.mark.parametrize("names", [["a", "b"], [3, 7]])
def test_series_below_each_other_are_told_apart_by_the_column_that_does(names):
    task = open_task(table(shop=[n for n in names for _ in DAYS]).sample(fraction=1.0, shuffle=True, seed=1), **SMALL)
    assert (task.saved.plan.group, task.input.names) == ("shop", ("sold",))
    assert "each 'shop' is a series of its own; group=... names another column" in str(task.notes)
    x = next(task.batches("train", batch=100)).x  # a window that mixed both would go up and down by 100
    assert float((x.amax(1) - x.amin(1)).max()) < 0.1


def test_series_that_two_columns_tell_apart_are_an_error_and_stamps_that_repeat_a_warning():
    shops, goods = ["a", "b"] * 31, (["x"] * 2 + ["y"] * 2) * 15 + ["x", "x"]
    data = table().with_columns(day=pl.Series([DAYS[i // 4] for i in range(62)]))
    with pytest.raises(ValueError, match="no one column tells their series apart; join shop, good into one"):
        open_task(data.with_columns(shop=pl.Series(shops), good=pl.Series(goods)), **SMALL)
    task = open_task(data, **SMALL)
    assert any("46 of 62 rows repeat a time stamp of 'day'" in text for text in task.notes.warnings)


def test_the_usual_windows_shrink_to_a_short_table_and_what_was_asked_for_stays():
    data = pl.DataFrame({"v": np.sin(np.arange(50.0))})
    task = open_task(data)
    assert (task.lookback, task.horizon) == (15, 2)
    assert "does not fit in: 15 steps say 2; lookback=... and horizon=... take others" in str(task.notes)
    assert open_task(data, horizon=4).horizon == 4
    with pytest.raises(ValueError, match=r"no room for a window of 40 \+ 2 rows; shorten lookback=... or"):
        open_task(data, lookback=40)


def test_a_forecast_of_several_series_says_which_is_which(tmp_path):
    table(shop=["b"] * 31 + ["a"] * 31).write_csv(tmp_path / "shops.csv")
    run = fit(tmp_path / "shops.csv", model="rnn", name="shops", runs=tmp_path, hidden=4, steps=2, **SMALL)
    found = list(Run.load(run.folder).predict(tmp_path / "shops.csv", keep=["day"]))
    assert [(row["shop"], row["day"], len(row["prediction"])) for row in found] == [
        ("a", "2026-01-31", 2),
        ("b", "2026-01-31", 2),
    ]
    assert found[0]["prediction"][0] > found[1]["prediction"][0] + 50
    table().head(31).write_csv(tmp_path / "one.csv")  # new rows may be one series
    assert [list(row) for row in run.predict(tmp_path / "one.csv")] == [["prediction"]]
