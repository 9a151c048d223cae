"""What model.json says about a forecast."""

import math

import polars as pl
import pytest

from seqloom.lab.data.registry import open_task
from seqloom.lab.export.description import describe
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.model import build


@pytest.mark.parametrize("target", ["a", "b", "a,b"])
def test_the_features_that_are_forecast_are_named(tmp_path, monkeypatch, target):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path))
    waves = {name: [math.sin(n / k) for n in range(150)] for name, k in (("a", 3), ("b", 5))}
    task = open_task(pl.DataFrame(waves), kind="forecast", target=tuple(target.split(",")), horizon=4, lookback=12)
    about = describe(build(task, TrainSettings(model="gru", hidden=4)), task)
    assert about["kind"] == "forecast" and about["limit"] == 12
    columns = about["encoder"]["columns"]
    assert [columns[k] for k in about["target_features"]] == target.split(",") == about["names"]
    assert about["segment"] == 0 and "intervals" not in about
