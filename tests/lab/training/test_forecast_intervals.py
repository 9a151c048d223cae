"""Forecasts with dates and intervals, from training to a table in long format."""

import csv
import io
import json
import shutil
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
import torch

from seqloom import Run
from seqloom.cli.main import app
from seqloom.core.errors import UserError
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import read_record, write_record
from seqloom.lab.files import sealed
from seqloom.lab.kinds.prediction_intervals import FILE, measure_units
from seqloom.lab.training.fit import fit
from seqloom.lab.training.results import evaluate

OPTIONS = {"target": "sales", "lookback": 28, "horizon": 3}


def shops(n=600, seed=0):
    """Return two shops by day: one sells about 100, the other ten times as much, with as much more noise."""
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "shop": ["large"] * n + ["small"] * n,
            "day": [str(date(2026, 1, 1) + timedelta(i)) for i in range(n)] * 2,
            "sales": np.concatenate([1000 + 100 * random.normal(size=n), 100 + 10 * random.normal(size=n)]),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    shops().write_csv(place / "shops.csv")
    return fit(place / "shops.csv", model="rnn", name="shops", runs=place, hidden=4, steps=20, **OPTIONS)


def test_intervals_cover_the_test_windows_as_promised_and_are_wider_for_a_series_that_moves_more(run):
    metrics = evaluate(run)["metrics"]
    assert metrics["coverage_80"] == pytest.approx(0.8, abs=0.05)
    assert metrics["coverage_95"] == pytest.approx(0.95, abs=0.05)
    large, small = Run.load(run.folder).predict(shops()).to_dicts()
    for level in (80, 95):
        widths = [row[f"upper_{level}"][0] - row[f"lower_{level}"][0] for row in (large, small)]
        assert 4 < widths[0] / widths[1] < 25
    assert large["lower_95"][0] < large["lower_80"][0] < large["prediction"][0] < large["upper_80"][0]


def test_few_windows_that_overlap_have_no_intervals_and_evaluate_says_why(run, tmp_path):
    shops(33, seed=1).write_csv(tmp_path / "few.csv")  # three windows of each shop
    document = evaluate(run, tmp_path / "few.csv")
    assert document["examples"] == 6 and not document["intervals"]
    assert any("overlap, so they need 10 windows or more, and there are 6" in text for text in document["warnings"])
    shops(31, seed=1).write_csv(tmp_path / "two.csv")  # one window of each shop: they do not overlap
    document = evaluate(run, tmp_path / "two.csv")
    assert document["intervals"]["rmse"][0] == 0 and any("1 degree of freedom" in t for t in document["warnings"])
    assert not evaluate(run)["warnings"]


def test_a_run_without_intervals_predicts_without_them(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "old")
    (tmp_path / "old" / FILE).unlink()
    assert Run.load(tmp_path / "old").predict(shops()).columns == ["shop", "date", "prediction"]


@pytest.mark.parametrize("change", [{"floor": [1.0, 1.0]}, {"floor": []}, {"widths": {"80": [[1.0]]}}])
def test_intervals_that_do_not_fit_the_forecast_are_refused_in_one_line(change, run, tmp_path):
    """Their digest is valid, as in a forged file."""
    shutil.copytree(run.folder, tmp_path / "forged")
    record = json.loads((tmp_path / "forged" / FILE).read_bytes())
    del record[sealed.KEY]
    (tmp_path / "forged" / FILE).write_bytes(sealed.dumps(record | change))
    with pytest.raises(UserError, match=r"intervals\.json is damaged: [^\n]*$"):
        Run.load(tmp_path / "forged").predict(shops())


def test_a_run_of_an_earlier_version_still_forecasts(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "old")
    record = read_record(tmp_path / "old" / "task")
    scale = record["x"]["scale"]
    record["x"] = {"coder": "series", "columns": ["sales"], "wide": False, "width": 1, "scale": scale}
    record["times"] = None  # regular time stamps were not stored
    del record["plan"]["known"]
    write_record(tmp_path / "old" / "task", record | {"format": 3})
    assert Run.load(tmp_path / "old").predict(shops()).equals(run.predict(shops()))


def test_errors_are_in_units_of_the_data_and_relative_to_the_season(run):
    metrics, task = evaluate(run)["metrics"], open_task(run.folder.parent / "shops.csv", **OPTIONS)
    (batch,) = task.batches("test", batch=1000)
    y, p = (np.array(task.decode(v))[..., 0] for v in (batch.y, run.model().predict(batch).values))
    large = batch.series.numpy() == 0
    assert 900 < y[large].mean() < 1100 and 90 < y[~large].mean() < 110
    assert metrics["mae"] == pytest.approx(np.abs(y - p).mean(), rel=1e-4)
    assert metrics["rmse"] == pytest.approx(np.sqrt(np.square(y - p).mean()), rel=1e-4)
    assert metrics["smape"] == pytest.approx((2 * np.abs(y - p) / (np.abs(y) + np.abs(p))).mean(), rel=1e-4)
    train = shops()["sales"].to_numpy().reshape(2, -1)[:, :420]
    weekly = np.abs(train[:, 7:] - train[:, :-7]).mean(1)
    scaled = np.abs(y - p).mean(1) / weekly[batch.series.numpy()]
    assert metrics["mase"] == pytest.approx(scaled.mean(), rel=1e-4)


def test_the_command_writes_a_row_for_each_shop_and_date(run, capsys):
    code = app(
        ["predict", str(run.folder), str(run.folder.parent / "shops.csv")],
        exit_on_error=False,
        result_action="return_value",
    )
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert code == 0 and len(rows) == 6
    assert list(rows[0]) == ["shop", "date", "forecast", "lower_80", "upper_80", "lower_95", "upper_95"]
    assert [(row["shop"], row["date"]) for row in rows[2:4]] == [("large", "2027-08-26"), ("small", "2027-08-24")]


def test_a_past_shorter_than_the_windows_of_training_is_reported(run, tmp_path, capsys):
    def warn(rows):
        rows.write_csv(tmp_path / "new.csv")
        command = ["predict", str(run.folder), str(tmp_path / "new.csv")]
        assert app(command, exit_on_error=False, result_action="return_value") == 0
        return capsys.readouterr().err

    rows = shops()
    short = rows.filter((pl.col("shop") == "large") | (pl.col("day") >= rows["day"][-5]))
    assert "1 of 2 series has fewer than the 28 steps that the model was trained on (the shortest has 5)" in warn(short)
    assert "the past has 5 steps, and the model was trained on 28; it reads" in warn(short[-5:])
    assert "steps" not in warn(rows)


def test_units_use_the_season_if_the_past_is_long_enough():
    past = torch.tensor([[0.0, 5.0] * 4, [0.0, 5.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]).unsqueeze(-1)
    units = measure_units(past, torch.tensor([8, 3]), season=2)
    assert units[:, 0].tolist() == [0.0, 4.5]
