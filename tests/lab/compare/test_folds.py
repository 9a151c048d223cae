"""Cross-validation of small data."""

import copy

import numpy as np
import polars as pl
import pytest

from seqloom.core.errors import UserError
from seqloom.lab.compare.baselines.registry import BLIND
from seqloom.lab.compare.choice import choose_row
from seqloom.lab.compare.folder import resume_comparison, start_comparison, store_models
from seqloom.lab.compare.folds import join_folds
from seqloom.lab.compare.jobs import baseline_key, rung_key
from seqloom.lab.compare.leaderboard import build_leaderboard, short_caption
from seqloom.lab.compare.page import build_page
from seqloom.lab.compare.results import collect_results
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.registry import open_task
from seqloom.lab.jobs import runner
from seqloom.lab.kinds.baselines.registry import baselines
from seqloom.lab.training.run import Run

STEPS = {"models": "rnn", "steps": 4, "tune": 1}


def write_table(folder):
    """Write texts of two classes, 60 rows, to a file."""
    words = np.random.default_rng(0).integers(0, 30, (60, 4))
    rows = [" ".join(f"w{k}" for k in row) + (" good" if i % 3 else " bad") for i, row in enumerate(words)]
    frame = pl.DataFrame({"text": rows, "label": ["yes" if i % 3 else "no" for i in range(60)]})
    frame.write_csv(folder / "t.csv")
    return folder / "t.csv"


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return write_table(tmp_path)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Return a comparison in three folds that has ended."""
    table = write_table(tmp_path_factory.mktemp("folds"))
    comparison = start_comparison(str(table), {}, CompareSettings(folds=3, **STEPS), table.parent / "out")
    for result in runner.run(comparison.jobs(), runner.Here(), comparison.folder / "jobs"):
        comparison.results[result.key] = result
    return comparison


def test_every_row_is_a_test_row_once_and_classes_are_spread(table):
    tasks = [open_task(str(table), fold=f"{k}/5") for k in range(1, 6)]
    tested = np.concatenate([task._index["test"] for task in tasks])
    assert sorted(tested.tolist()) == list(range(60))
    for task in tasks:
        y = task.read_classes("test")
        assert sorted(np.bincount(y)) == [4, 8]
        assert sum(split.size for split in task.splits.values()) == 60


def test_data_with_their_own_test_rows_have_no_folds(table):
    frame = pl.read_csv(table).with_columns(pl.Series("split", ["train", "train", "test"] * 20))
    frame.write_csv("own.csv")
    with pytest.raises(UserError, match="for data without splits of their own"):
        open_task("own.csv", split="split", fold="1/5")
    comparison = start_comparison("own.csv", {"split": "split"}, CompareSettings(**STEPS), None)
    assert comparison.folds == 1


def test_only_folds_that_all_models_have_are_joined():
    def rows(*folds):
        return {k: {"right": np.full(2, float(k))} for k in folds}

    joined, folds = join_folds({"a": rows(0, 1, 2), "b": rows(0, 1), "c": rows(5)})
    assert folds == [0, 1] and set(joined) == {"a", "b"}
    assert joined["b"][0]["right"].tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.slow
def test_small_data_are_cross_validated_and_every_row_is_scored(comparison):
    results = collect_results(comparison)
    assert results.test_rows == 60 and results.folds == (3, 3)
    assert all(row.seeds == 3 for row in [*results.models, *results.baselines])
    assert "each predicted by a model that was trained without it: 3 folds" in short_caption(results)
    assert all("folds" in row for row in build_leaderboard(results))
    best = store_models(comparison, results)
    assert Run.load(best).record["source"]["options"]["fold"] == "1/3"
    page = build_page(comparison, results, True)
    classes, dots = (next(b for b in page.blocks if b.title == title) for title in ("Classes", "Test results"))
    assert not dots.by_seed and dots.note == "Each dot is the score of the test rows of all folds together."
    assert sum(row["rows"] for row in classes.rows) == 60
    assert resume_comparison(None, {}, CompareSettings(), comparison.folder).folds == 3


@pytest.mark.slow
def test_all_folds_choose_the_baseline_even_if_models_have_one_alone(comparison, monkeypatch):
    monkeypatch.setattr(comparison, "results", copy.deepcopy(comparison.results))
    names = [name for name in baselines(comparison.task) if name not in BLIND][:2]
    for name, accuracies in zip(names, [(0.9, 0.1, 0.1), (0.8, 0.7, 0.9)], strict=True):
        for k, accuracy in enumerate(accuracies):  # in the first fold the first one is ahead
            comparison.results[baseline_key(name, k)].value["valid"][comparison.metric.name] = accuracy
    all_folds = collect_results(comparison)
    for trials in comparison.finalists:
        for trial in trials[1:]:
            del comparison.results[rung_key(trial, comparison.plan.steps)]
    one_fold = collect_results(comparison)
    assert (all_folds.folds, one_fold.folds) == ((3, 3), (1, 3)) and one_fold.models
    for results in (all_folds, one_fold):
        rows = {row.name: row for row in results.baselines}
        assert rows[names[0]].valid == pytest.approx(1.1 / 3) and rows[names[1]].valid == pytest.approx(0.8)
        assert choose_row(results).row.name != names[0]


def test_few_rows_choose_folds_and_one_fold_is_a_plain_split(table):
    assert start_comparison(str(table), {}, CompareSettings(**STEPS), None).folds == 5
    assert start_comparison(str(table), {}, CompareSettings(folds=1, **STEPS), None).folds == 1
    with pytest.raises(UserError, match="folds=5 is for files whose rows are examples"):
        start_comparison("reverse", {}, CompareSettings(folds=5, **STEPS), None)


def test_too_few_rows_for_folds_are_split_once(tmp_path):
    lines = [f"{' '.join('abcdefgh'[i : i + 3])},{'xy'[i % 2]}" for i in range(4)]
    (tmp_path / "few.csv").write_text("text,label\n" + "\n".join(lines * 2) + "\n")
    options = {"kind": "classify", "target": "label"}
    assert start_comparison(str(tmp_path / "few.csv"), options, CompareSettings(**STEPS), None).folds == 1
    with pytest.raises(UserError, match=r"few\.csv: fold=1/5: there are only 4 different examples; use fewer folds"):
        start_comparison(str(tmp_path / "few.csv"), options, CompareSettings(folds=5, **STEPS), None)
