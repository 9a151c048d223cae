"""Cross-validation of small data."""

import numpy as np
import polars as pl
import pytest

from seqloom.core.errors import UserError
from seqloom.lab.compare.folder import resume_comparison, start_comparison, store_models
from seqloom.lab.compare.folds import join_folds
from seqloom.lab.compare.leaderboard import build_leaderboard, short_caption
from seqloom.lab.compare.page import build_page
from seqloom.lab.compare.results import collect_results
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.registry import open_task
from seqloom.lab.jobs import runner
from seqloom.lab.training.run import Run

STEPS = {"models": "rnn", "steps": 4, "tune": 1}


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    """Texts of two classes, 60 rows, in a file."""
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = np.random.default_rng(0).integers(0, 30, (60, 4))
    rows = [" ".join(f"w{k}" for k in row) + (" good" if i % 3 else " bad") for i, row in enumerate(words)]
    frame = pl.DataFrame({"text": rows, "label": ["yes" if i % 3 else "no" for i in range(60)]})
    frame.write_csv(tmp_path / "t.csv")
    return tmp_path / "t.csv"


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
def test_small_data_are_cross_validated_and_every_row_is_scored(table):
    comparison = start_comparison(str(table), {}, CompareSettings(folds=3, **STEPS), table.parent / "out")
    for result in runner.run(comparison.jobs(), runner.Here(), comparison.folder / "jobs"):
        comparison.results[result.key] = result
    results = collect_results(comparison)
    assert results.test_rows == 60 and results.folds == (3, 3)
    assert all(row.seeds == 3 for row in [*results.models, *results.baselines])
    assert "each predicted by a model that was trained without it: 3 folds" in short_caption(results)
    assert all("folds" in row for row in build_leaderboard(results))
    best = store_models(comparison, results)
    assert Run.load(best).record["source"]["options"]["fold"] == "1/3"
    page = build_page(comparison, results, True)
    classes = next(block for block in page.blocks if block.title == "Classes")
    assert sum(row["rows"] for row in classes.rows) == 60
    assert resume_comparison(None, {}, CompareSettings(), comparison.folder).folds == 3


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
