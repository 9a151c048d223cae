"""Forecasts of one column from others: past, known ahead, and categorical ones."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Notes
from seqloom.lab.training.fit import fit
from seqloom.lab.training.predict import predict
from seqloom.lab.training.run import Run

SMALL = {"lookback": 8, "horizon": 3}


def shops(n=60, names="ab", seed=0):
    """Return the sales of shops by day, with promotions and weather."""
    random = np.random.default_rng(seed)
    rows = []
    for name in names:
        promo, weather = random.integers(0, 2, n), random.choice(["sun", "rain", "snow"], n)
        sales = 20 + 10 * promo + 3 * (weather == "sun") + random.normal(0, 0.5, n)
        rows += [
            (name, str(date(2026, 1, 1) + timedelta(i)), float(sales[i]), int(promo[i]), str(weather[i]))
            for i in range(n)
        ]
    return pl.DataFrame(rows, schema=["shop", "day", "sales", "promo", "weather"], orient="row")


def test_only_the_named_target_is_forecast_and_the_others_are_inputs():
    task = open_task(shops(), input="sales,promo,weather", target="sales", **SMALL)
    assert task.target.names == ("sales",)
    assert task.input.names == ("sales", "promo", "weather=rain", "weather=snow", "weather=sun")
    assert (task.input.known, task.group) == ((), "shop")
    assert open_task(shops(), target="sales", **SMALL).input.names == task.input.names  # without input as well


def test_the_future_of_known_columns_is_in_the_batch_and_of_no_others():
    data = shops(names="a")
    task = open_task(data, input="sales,promo,weather", target="sales", known="promo,weather", **SMALL)
    assert task.input.known == ("promo", "weather=rain", "weather=snow", "weather=sun")
    batch = next(task.batches("test", batch=1))
    start = 60 - 12  # the last fifth of the rows is for testing
    promo = task.encoding.x.scale.deviation[1] * batch.future[0, :, 0] + task.encoding.x.scale.mean[1]
    assert promo.round().tolist() == data["promo"][start : start + 3].to_list()
    assert (batch.future[0, :, 3] == 1).tolist() == (data["weather"][start : start + 3] == "sun").to_list()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"known": "sales"}, "'sales' is to be forecast, so its future is not known"),
        ({"known": "promotion"}, "no column 'promotion'; did you mean 'promo'"),
    ],
)
def test_a_wrong_known_column_is_one_clear_error(options, message):
    with pytest.raises(ValueError, match=message):
        open_task(shops(), target="sales", input="sales,promo", **SMALL, **options)


def test_a_note_says_that_several_columns_are_forecast_unless_they_were_chosen():
    data = shops().drop("weather")
    assert "2 columns are forecast; choose some with target=..." in str(open_task(data, **SMALL).notes)
    assert "columns are forecast" not in str(open_task(data, target="sales", **SMALL).notes)


def test_a_model_learns_from_what_is_known_and_needs_it_for_new_rows(tmp_path):
    data = shops(120)
    options = {"input": "sales,promo", "target": "sales", "known": "promo", **SMALL}
    run = fit(data, model="gru", name="shops", runs=tmp_path, hidden=8, steps=150, lr=0.01, batch=32, **options)
    future = pl.DataFrame(
        {
            "shop": ["a", "b"] * 3,
            "day": [str(date(2026, 5, 1) + timedelta(i // 2)) for i in range(6)],
            "sales": [None] * 6,
            "promo": [1, 0, 0, 1, 1, 1],
        }
    )
    new = pl.concat([data.drop("weather"), future], how="vertical_relaxed")
    a, b = Run.load(run.folder).predict(new).to_dicts()
    assert a["prediction"][0] > a["prediction"][1] + 5 < a["prediction"][2]  # a promotion sells 10 more
    assert b["prediction"][0] < b["prediction"][1] - 5
    with pytest.raises(ValueError, match="series 'a': after the last 'sales' the file has 0 rows with promo; the fore"):
        run.predict(data)
    steps = {"sales": [20.0] * 8, "promo": [0] * 8 + [1, 0, 1]}
    (one,) = run.predict([steps])  # rows of Python values: the known column is longer
    assert one["prediction"][0] > one["prediction"][1] + 5
    with pytest.raises(ValueError, match="'promo' has 8 steps; its future is known, so give 8 and 3 more"):
        run.predict([steps | {"promo": [0] * 8}])


def test_new_names_and_missing_known_values_are_reported_with_the_forecast(tmp_path):
    data = shops(names="a")
    options = {"input": "sales,promo,weather", "target": "sales", "known": "promo,weather", **SMALL}
    run = fit(data, model="rnn", name="shops", runs=tmp_path, hidden=4, steps=1, **options)
    days = [str(date(2026, 3, 2) + timedelta(i)) for i in range(3)]
    future = {"shop": "a", "day": days, "sales": None, "promo": [1, None, 0], "weather": ["sun", "hail", None]}
    notes = Notes()
    new = pl.concat([data, pl.DataFrame(future, schema=data.schema)])
    assert len(list(predict(run, new, notes=notes))) == 1
    assert notes.warnings == [
        "'weather' has values that the model does not know ('hail'); it reads them as missing",
        "'promo' has steps to forecast without a value; they repeat earlier values",
        "'weather' has steps to forecast without a value; they are read as missing",
    ]
    list(
        predict(run, new.head(len(data)).with_columns(sales=pl.when(pl.int_range(60) < 57).then("sales")), notes=notes)
    )
    assert len(notes.warnings) == 3  # nothing to report
