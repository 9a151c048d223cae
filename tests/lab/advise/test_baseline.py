import numpy as np
import polars as pl
import pytest
from advise_data import sample_of, shift, tokens

from seqloom.lab.advise.baseline import fit_linear_baseline
from seqloom.lab.advise.sample import draw_sample
from seqloom.lab.data.registry import open_task


def test_decisive_words_need_no_order():
    x, ids = tokens(800, 12, kinds=30)
    actual = fit_linear_baseline(sample_of("classify", x, (ids == 3).any(1).astype(int)))
    assert actual.metric == "accuracy" and actual.higher
    assert actual.linear > 0.95 and actual.bag > 0.95
    assert actual.trivial == pytest.approx(max((ids == 3).any(1).mean(), 1 - (ids == 3).any(1).mean()), abs=0.01)


def test_word_order_shows_as_a_gap_between_bigrams_and_single_words():
    random = np.random.default_rng(0)
    y = random.integers(2, size=800)
    fill = [[f"f{i}" for i in row] for row in random.integers(40, size=(800, 8))]
    x = [row[:4] + (["a", "b"] if label else ["b", "a"]) + row[4:] for row, label in zip(fill, y, strict=True)]
    actual = fit_linear_baseline(sample_of("classify", x, y))
    assert actual.linear > 0.95 and actual.bag < 0.65


def test_the_class_of_a_series_is_found_by_a_ridge():
    random = np.random.default_rng(0)
    y = np.arange(120) % 2
    baseline = fit_linear_baseline(sample_of("classify", [random.normal(size=(6, 2)) + 3 * k for k in y], y.tolist()))
    assert baseline.metric == "accuracy" and baseline.linear > 0.9 and baseline.trivial == pytest.approx(0.5, abs=0.1)
    assert baseline.how == "ridge over the series and its summary"


def test_a_linear_target_is_regressed_exactly_and_its_mean_is_the_trivial_answer():
    x = np.random.default_rng(0).normal(size=(700, 6, 2))
    actual = fit_linear_baseline(sample_of("regress", list(x), x[:, :, 0].sum(1, keepdims=True)))
    assert actual.metric == "mse" and actual.linear < 0.01
    assert actual.trivial == pytest.approx(1.0, abs=0.05)  # targets are scaled


def test_a_tag_within_the_window_is_found_and_one_beyond_it_is_not():
    x, ids = tokens(600, 15)
    near = fit_linear_baseline(sample_of("tag", x, shift(ids, 2)))
    far = fit_linear_baseline(sample_of("tag", x, shift(ids, 6)))
    assert near.linear > 0.85 and far.linear < 0.3


def test_ridge_forecasts_a_wave(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path))
    t = np.arange(900)
    frame = pl.DataFrame({"a": np.sin(t / 5), "b": np.cos(t / 9)})
    actual = fit_linear_baseline(draw_sample(open_task(frame, kind="forecast", lookback=60, horizon=12)))
    assert actual.metric == "mse" and actual.linear < 0.01 and actual.trivial > 0.2


def test_trigrams_predict_a_repeating_text(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("abcd\n" * 4_000)
    actual = fit_linear_baseline(draw_sample(open_task(tmp_path / "text.txt", lookback=50)))
    assert actual.trivial == pytest.approx(np.log(5), abs=0.05)
    assert actual.linear < 0.2


def test_translation_has_no_linear_model():
    task = open_task("reverse", steps=5)
    assert task.kind == "translate" and fit_linear_baseline(draw_sample(task)) is None
