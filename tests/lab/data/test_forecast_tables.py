"""Forecast tables: several series in one table, and too few rows for the default windows."""

import numpy as np
import polars as pl
import pytest

from seqloom import Run
from seqloom.core.errors import UserError
from seqloom.lab.data.registry import open_task
from seqloom.lab.training.fit import fit

SMALL = {"lookback": 8, "horizon": 2}
DAYS = [f"2026-01-{d:02d}" for d in range(1, 32)]


def table(**more):
    """Return the sales of two shops, day by day: one sells about 0, the other about 100."""
    n = len(DAYS)
    sold = [float(v) + 100 * s for s in range(2) for v in np.random.default_rng(s).random(n)]
    return pl.DataFrame({"day": DAYS * 2, "sold": sold} | more)


@pytest.mark.parametrize("names", [["a", "b"], [3, 7]])
def test_series_below_each_other_are_separated_by_the_column_that_names_them(names):
    task = open_task(table(shop=[n for n in names for _ in DAYS]).sample(fraction=1.0, shuffle=True, seed=1), **SMALL)
    assert (task.encoding.plan.group, task.input.names) == ("shop", ("sold",))
    assert "each 'shop' is a series; choose another column with group=..." in str(task.notes)
    x = next(task.batches("train", batch=100)).x  # a window that mixed both would go up and down by 100
    assert float((x.amax(1) - x.amin(1)).max()) < 0.1


def test_two_columns_that_name_series_are_an_error_and_repeated_stamps_a_warning():
    shops, goods = ["a", "b"] * 31, (["x"] * 2 + ["y"] * 2) * 15 + ["x", "x"]
    data = table().with_columns(day=pl.Series([DAYS[i // 4] for i in range(62)]))
    with pytest.raises(ValueError, match="no single column separates the series; join shop, good into one column"):
        open_task(data.with_columns(shop=pl.Series(shops), good=pl.Series(goods)), **SMALL)
    task = open_task(data, **SMALL)
    assert any("rows that repeat a time stamp of 'day': 46 of 62" in text for text in task.notes.warnings)


def test_default_windows_shrink_for_a_short_table_and_requested_ones_stay():
    data = pl.DataFrame({"v": np.sin(np.arange(50.0))})
    task = open_task(data)
    assert (task.lookback, task.horizon) == (15, 2)
    assert "does not fit; 15 steps predict 2 instead (change this with lookback=... and horizon=...)" in str(task.notes)
    assert open_task(data, horizon=4).horizon == 4
    with pytest.raises(ValueError, match=r"no room for a window of 40 \+ 2 rows; shorten lookback=... or"):
        open_task(data, lookback=40)


def test_other_data_that_are_shorter_than_a_window_say_how_long_they_are(tmp_path):
    task = open_task(pl.DataFrame({"v": np.sin(np.arange(50.0))}))
    pl.DataFrame({"v": np.arange(9.0)}).write_csv(tmp_path / "short.csv")
    with pytest.raises(UserError, match=r"short.csv has 9 rows, fewer than a window of 15 \+ 2 rows; give a longer"):
        task.open_file(tmp_path / "short.csv")


def test_a_forecast_of_several_series_says_which_is_which(tmp_path):
    table(shop=["b"] * 31 + ["a"] * 31).write_csv(tmp_path / "shops.csv")
    run = fit(tmp_path / "shops.csv", model="rnn", name="shops", runs=tmp_path, hidden=4, steps=2, **SMALL)
    predictions = list(Run.load(run.folder).predict(tmp_path / "shops.csv", keep=["day"]))
    assert [(row["shop"], row["day"], len(row["prediction"])) for row in predictions] == [
        ("a", "2026-01-31", 2),
        ("b", "2026-01-31", 2),
    ]
    assert predictions[0]["prediction"][0] > predictions[1]["prediction"][0] + 50
    table().head(31).write_csv(tmp_path / "one.csv")  # new rows may be one series
    (one,) = run.predict(tmp_path / "one.csv")
    assert "shop" not in one and one["date"] == ["2026-02-01", "2026-02-02"]


@pytest.mark.slow
def test_a_model_of_groups_predicts_from_a_file_of_groups_in_their_order(tmp_path):
    rng = np.random.default_rng(0)
    steps = [(f"p{p:02d}", s, rng.normal(p % 2 * 9), "ny"[p % 2]) for p in range(40) for s in range(3 + p % 5)]
    data = pl.DataFrame(steps, schema=["who", "step", "pulse", "sick"], orient="row")
    data.write_csv(tmp_path / "wards.csv")
    asked = {"group": "who", "time": "step", "target": "sick"}
    run = fit(tmp_path / "wards.csv", model="rnn", name="w", runs=tmp_path, hidden=8, steps=60, lr=0.03, **asked)
    new = data.sample(fraction=1.0, shuffle=True, seed=3).drop("sick")
    new.write_csv(tmp_path / "new.csv")
    predictions = list(run.predict(tmp_path / "new.csv"))
    assert [row["who"] for row in predictions] == new["who"].unique(maintain_order=True).to_list()
    assert all(row["prediction"] == "ny"[int(row["who"][1:]) % 2] for row in predictions)
    with pytest.raises(ValueError, match="no column 'who', which the training data have"):
        list(run.predict(new.drop("who").write_csv(tmp_path / "no.csv") or tmp_path / "no.csv"))


def test_a_forecast_without_the_past_of_its_target_is_an_error_before_anything_is_trained():
    data = pl.DataFrame({"a": np.arange(90.0) ** 0.5, "b": np.arange(90.0) ** 0.7})
    with pytest.raises(ValueError, match="a forecast of 'b' needs its past; add it with input=a,b"):
        open_task(data, input="a", target="b", kind="forecast", **SMALL)


@pytest.mark.parametrize("wrong", ["abc", ["a"], 5, [1.0, 2.0], [[1.0, 2.0], [3.0]]])
def test_a_table_of_another_kind_than_in_training_is_one_clear_error(wrong):
    rng = np.random.default_rng(0)
    data = pl.DataFrame({"x": [rng.random((4, 2)).tolist() for _ in range(40)], "y": ["a", "b"] * 20})
    task = open_task(data)
    with pytest.raises(
        ValueError, match=r"column 'x': .*(not a list of numbers|one number per step|1 number in a step)"
    ):
        task.encode([{"x": wrong}])
    assert task.encode([{"x": None}]).lengths.tolist() == [0]
    assert task.encode([{"x": [[1.0, None], [3.0, 4.0]]}]).x.shape == (1, 2, 2)
