import numpy as np
import polars as pl
import pytest
from advise_data import sample_of, shift, tokens

from seqloom.lab.advise.dependence import measure_dependence
from seqloom.lab.advise.facts import find_season
from seqloom.lab.advise.sample import draw_sample
from seqloom.lab.data.registry import open_task


def peak(curve):
    return curve.distances[int(np.argmax(curve.y))]


@pytest.mark.parametrize("lag", [5, -3])
def test_the_lag_of_a_tag_is_found(lag):
    x, ids = tokens(300, 20)
    curve = measure_dependence(sample_of("tag", x, shift(ids, lag)))
    assert peak(curve) == lag
    assert curve.ahead == pytest.approx(float(lag < 0), abs=0.05)


def test_the_place_of_the_token_that_decides_a_class_is_found():
    x, ids = tokens(1_500, 20)
    curve = measure_dependence(sample_of("classify", x, ids[:, -13] % 2))
    assert peak(curve) == curve.reach == 12
    assert 0.7 < max(curve.y) <= 1.05  # one of two classes is one bit


def test_the_place_of_the_number_that_decides_a_class_is_found():
    x = np.random.default_rng(0).normal(size=(600, 16, 2))
    assert peak(measure_dependence(sample_of("classify", list(x), (x[:, -8, 1] > 0).astype(int)))) == 7


def test_the_place_of_the_number_that_decides_a_value_is_found():
    x = np.random.default_rng(0).normal(size=(600, 16, 1))
    assert peak(measure_dependence(sample_of("regress", list(x), x[:, -4]))) == 3


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_random_inputs_are_not_mistaken_for_information(kind):
    x, ids = tokens(400, 12)
    y = np.random.default_rng(1).integers(3, size=ids.shape)
    curve = measure_dependence(sample_of(kind, x, y[:, 0] if kind == "classify" else y.tolist()))
    assert sum(v > 0 for v in curve.y) <= 1


def test_the_season_of_a_series_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path))
    t = np.arange(800)
    wave = np.sin(2 * np.pi * t / 24) + 0.1 * np.random.default_rng(0).normal(size=800)
    some = draw_sample(open_task(pl.DataFrame({"a": wave, "b": -wave}), kind="forecast", lookback=96, horizon=8))
    assert find_season(some) == 24
    curve = measure_dependence(some)
    assert curve.y[curve.distances.index(1)] > 1
