import itertools
import json

import numpy as np
import polars as pl
import pytest
import torch

from seqloom.core.errors import UserError
from seqloom.lab.compare.baselines.registry import describe_baseline, fit_baseline, fit_within
from seqloom.lab.compare.data import load_task
from seqloom.lab.compare.row_scores import load, score_rows
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Batch, Split
from seqloom.lab.kinds.baselines import window
from seqloom.lab.kinds.baselines.counts import ConstantText
from seqloom.lab.kinds.baselines.registry import ROCKET, baselines, build_baseline
from seqloom.lab.kinds.baselines.window import WindowTagger, fit_window, fit_window_crf
from seqloom.lab.kinds.transcribe import WithoutLoss
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.run import Run


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(window, "FEWEST_UPDATES", 100)  # enough for tags that follow from one word


def measure(frame, tmp_path, name, **options):
    """Fit a baseline to a table with its job; return its test metrics."""
    file = tmp_path / "data.parquet"
    frame.write_parquet(file)
    source = {"data": str(file), "options": options}
    result = fit_baseline(source, name, 32, str(tmp_path / "run"), None, tmp_path)
    assert result["valid"] and result["latency"]["one"] > 0
    columns = load(tmp_path)
    task = load_task(source)
    again = score_rows(Run.load(tmp_path / "run").model(), task, "test", 32)
    for key, column in columns.items():  # a baseline that was saved and loaded is the same
        np.testing.assert_array_equal(again[key], column)
    return compute_scores(columns).values


def test_word_pairs_separate_classes(tmp_path):
    random = np.random.default_rng(0)
    noise = [" ".join(random.choice(["red", "blue", "green", "odd"], 6)) for _ in range(300)]
    label = [str(random.integers(2)) for _ in noise]
    text = [f"{n} {'not good' if k == '0' else 'good not'} {n[::-1][:4]}" for n, k in zip(noise, label, strict=True)]
    frame = pl.DataFrame({"text": text, "label": label})
    options = {"target": "label", "near_duplicates": False}
    assert measure(frame, tmp_path, "TF-IDF + logistic regression", **options)["accuracy"] > 0.95
    assert measure(frame, tmp_path, "majority", **options)["accuracy"] < 0.8


def test_a_ridge_finds_the_mean_of_a_series(tmp_path):
    random = np.random.default_rng(0)
    series = [random.normal(size=random.integers(5, 20)) + random.normal() for _ in range(200)]
    frame = pl.DataFrame({"s": [s.tolist() for s in series], "y": [float(s.mean()) for s in series]})
    options = {"target": "y", "kind": "regress"}
    ridge, mean = (measure(frame, tmp_path, name, **options)["rmse"] for name in ("ridge", "mean"))
    assert ridge < 0.05 * mean


def test_the_most_frequent_tag_of_a_token_is_counted(tmp_path):
    rows = [(["a", "b", "a"], ["X", "Y", "X"]), (["a", "c"], ["Z", "Y"])] * 40
    frame = pl.DataFrame({"tokens": [r[0] for r in rows], "tags": [r[1] for r in rows]})
    metrics = measure(frame, tmp_path, "most frequent tag of each token", target="tags", near_duplicates=False)
    assert 0.6 < metrics["accuracy"] < 1  # a is X in two of three places, so Z is never predicted


@pytest.mark.parametrize("fit", [fit_window, fit_window_crf])
def test_a_tag_that_is_only_in_the_validation_rows_does_not_stop_a_baseline(fit, tmp_path):
    rows = [
        ([f"w{i}", "b"], ["X", "NEW" if split == "valid" else "Y"], split)
        for split in ("train", "valid", "test")
        for i in range(20)
    ]
    for split in ("train", "valid", "test"):
        chosen = [row for row in rows if row[2] == split]
        frame = pl.DataFrame({"tokens": [r[0] for r in chosen], "tags": [r[1] for r in chosen]})
        frame.write_parquet(tmp_path / f"{split}.parquet")
    task = open_task(str(tmp_path), target="tags", near_duplicates=False)
    model = fit(task)
    assert compute_scores(score_rows(model, task, "test", 8)).values["accuracy"] == 1


def test_a_crf_carries_tags_beyond_its_window(tmp_path):
    middles = itertools.product("xy", repeat=6)
    rows = [([first, *middle], [first.upper()] * 7) for middle in middles for first in "ab"]
    frame = pl.DataFrame({"tokens": [r[0] for r in rows], "tags": [r[1] for r in rows]})
    options = {"target": "tags", "near_duplicates": False}
    alone = measure(frame, tmp_path, "window + logistic regression", **options)
    together = measure(frame, tmp_path, "window + CRF", **options)
    assert alone["accuracy"] < 0.9 and together["accuracy"] == 1


def test_the_season_of_a_series_is_found(tmp_path):
    t = np.arange(1500)
    wave = np.sin(2 * np.pi * t / 24) + 0.01 * np.random.default_rng(0).normal(size=len(t))
    frame = pl.DataFrame({"a": wave.tolist(), "b": np.roll(wave, 5).tolist()})
    options = {"lookback": 48, "horizon": 12, "kind": "forecast"}
    names = ("last value", "seasonal naive", "ridge", "mean of the past")
    last, season, ridge, mean = (measure(frame, tmp_path, name, **options)["mse"] for name in names)
    assert season < 0.001 < last and ridge < season and mean > 0.5


def test_a_bigram_is_a_distribution_that_ignores_the_source():
    task = open_task("reverse", kinds=4)
    assert list(baselines(task)) == ["unigram", "bigram"]
    batch = next(iter(task.batches("test", batch=8)))
    model = baselines(task)["bigram"](task)
    scores = model.scores(batch)[0]
    assert torch.allclose(scores.exp().sum(-1), torch.ones(scores.shape[:2]), atol=1e-3)
    batch.x[:] = 5
    assert torch.equal(model.scores(batch)[0], scores)


@pytest.mark.parametrize("name", ["adding", "copy"])
def test_every_task_has_a_baseline_that_can_be_scored(name):
    task = open_task(name)
    fits = [fit for title, fit in baselines(task).items() if title not in ("ridge", ROCKET)]
    batch = next(iter(task.batches("test", batch=4)))
    assert fits
    for fit in fits[:2]:
        model = fit(task)
        assert torch.isfinite(model(batch)[0]) and len(model.predict(batch).values) == 4


class TrackedFit:
    """A fit that takes a second for 1,000 rows, by its own clock."""

    def __init__(self):
        self.now, self.sizes = 0.0, []

    def __call__(self, task):
        self.sizes.append(task.splits["train"].size)
        self.now += self.sizes[-1] / 1000
        return len(self.sizes)


@pytest.mark.parametrize(
    ("rows", "seconds", "sizes"),
    [
        (1_000_000, 100.0, [2_000, 16_000, 49_200]),  # as many as the time allows
        (20_000, 100.0, [2_000, 16_000, 20_000]),  # all
        (1_000_000, 3.0, [2_000]),
        (1_000_000, None, [1_000_000]),
        (5_000, 1.0, [5_000]),  # small data are never sampled
    ],
)
def test_a_baseline_is_fitted_to_as_many_rows_as_the_time_allows(rows, seconds, sizes):
    task, fit = open_task("digits"), TrackedFit()
    task.splits = {**task.splits, "train": Split(rows, "")}
    last, sampled = fit_within(fit, task, seconds, clock=lambda: fit.now)
    assert fit.sizes == sizes and last == len(sizes)
    assert sampled == (sizes[-1] if sizes[-1] < rows else None)
    assert seconds is None or fit.now <= max(seconds, 5)


def test_character_n_grams_know_the_forms_of_a_word():
    forms = ("ing", "ed", "s", "able", "er", "ment")
    texts = [f"{stem}{form} it now" for stem in ("enjoy", "hat") for form in forms for _ in range(4)]
    frame = pl.DataFrame({"text": texts, "label": ["good" if t.startswith("e") else "bad" for t in texts]})
    task = open_task(frame, target="label", kind="classify", unit="words", near_duplicates=False)
    model = baselines(task)["TF-IDF of words and characters"](task)
    record = json.loads(json.dumps(describe_baseline(model)))
    same = build_baseline(task, record, model.model.arrays())
    batch = task.encode(["enjoyed it", "hatable now", "", "zzz"])
    assert task.decode(same.predict(batch).values)[:2] == ["good", "bad"]
    assert torch.equal(same.scores(batch)[0], model.scores(batch)[0])


def test_characters_have_no_character_n_grams_of_words():
    names = pl.DataFrame({"name": ["anna", "bernd"] * 20, "label": ["f", "m"] * 20})
    task = open_task(names, input="name", target="label", unit="characters", near_duplicates=False)
    assert "TF-IDF of words and characters" not in baselines(task)


def test_every_letter_of_a_transcript_is_a_target_of_the_most_frequent_text():
    y, lengths = torch.tensor([[4, 5], [4, 0]]), torch.tensor([2, 1])
    batch = Batch(torch.zeros(2, 3, 1), torch.tensor([3, 3]), torch.arange(2), y, lengths)
    assert WithoutLoss(ConstantText(ids=torch.tensor([4]))).count_targets(batch).tolist() == [2, 1]


@pytest.mark.parametrize("name", ["TF-IDF + logistic regression", "TF-IDF of words and characters"])
def test_a_linear_model_of_another_type_or_with_other_classes_is_refused(name):
    rows = [(f"good word{i}" if i % 2 else f"poor word{i}", "ab"[i % 2]) for i in range(60)]
    frame = pl.DataFrame({"text": [r[0] for r in rows], "label": [r[1] for r in rows]})
    task = open_task(frame, target="label", kind="classify", unit="words", near_duplicates=False)
    model = baselines(task)[name](task)
    record, arrays = describe_baseline(model), model.model.arrays()
    build_baseline(task, record, arrays)
    with pytest.raises(UserError, match=r"W and b of a linear model do not fit.*float16"):
        build_baseline(task, record, arrays | {"W": arrays["W"].half()})
    for classes in ([0], [0, 2], [0, 2**70], [0, "1"], [0, True]):
        with pytest.raises(UserError, match="classes of a linear model must be 2 numbers below 2"):
            build_baseline(task, {**record, "settings": record["settings"] | {"classes": classes}}, arrays)


@pytest.mark.parametrize(
    "change", [{"known": [1 << 22]}, {"known": [-1]}, {"b": [0.0]}, {"W": torch.zeros(2, 2).half()}]
)
def test_arrays_of_a_tagger_that_do_not_fit_are_refused(change):
    arrays = {
        "known": [5],
        "W": torch.zeros(2, 2),
        "b": [0.0, 0.0],
        "lower": [],
        "kinds": [],
        "chain": torch.zeros(4, 2),
    }
    types = {"known": torch.int64, "lower": torch.int64, "kinds": torch.int64}

    def build(arrays):
        return WindowTagger(**{name: torch.as_tensor(array, dtype=types.get(name)) for name, array in arrays.items()})

    build(arrays)
    with pytest.raises(UserError, match="arrays of a tagger do not fit each other"):
        build(arrays | change)
