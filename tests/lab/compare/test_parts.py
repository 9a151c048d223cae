"""Baselines that are ranked by parts of the rows, because there are few validation rows."""

import numpy as np
import polars as pl
import pytest

from seqloom.core.errors import UserError
from seqloom.lab.compare.baselines.registry import PARTS, open_parts, score_parts
from seqloom.lab.compare.folder import start_comparison
from seqloom.lab.compare.leaderboard import caption
from seqloom.lab.compare.results import collect_results
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.pipeline.splits import FoldError
from seqloom.lab.data.registry import open_data, open_task
from seqloom.lab.jobs import runner
from seqloom.lab.kinds.baselines.registry import baselines


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))


def write_rows(folder, groups=1):
    """Write 40 texts of two classes to train on, in groups of equal texts, and 20 to test on."""
    draw = np.random.default_rng(0)
    for name, rows in (("train", 40), ("test", 20)):
        words = np.repeat(draw.integers(0, 1000, (rows // groups, 6)), groups, 0)
        texts = [" ".join(f"w{w}" for w in row) + (" yes" if i // groups % 2 else " no") for i, row in enumerate(words)]
        labels = ["a" if i // groups % 2 else "b" for i in range(rows)]
        pl.DataFrame({"text": texts, "label": labels}).write_csv(folder / f"{name}.csv")
    return str(folder)


def write_series(folder, rows=150):
    t = np.arange(rows)
    pl.DataFrame({"n": 10 + np.sin(t / 3) + t / 50}).write_csv(folder / "series.csv")
    return str(folder / "series.csv")


@pytest.mark.parametrize("groups", [1, 2])
def test_every_row_that_is_not_for_testing_is_validated_once(tmp_path, groups):
    task, source = open_data(write_rows(tmp_path, groups), {})
    parts = open_parts(task, source)
    assert len(parts) == PARTS
    validated = np.concatenate([part._index["valid"] for part in parts])
    assert sorted(validated) == sorted(np.concatenate([task._index["train"], task._index["valid"]]))
    for part in parts:
        assert np.array_equal(part._index["test"], task._index["test"])
        assert not set(part._index["train"] // groups) & set(
            part._index["valid"] // groups
        )  # equal texts stay together
        assert sorted(np.bincount(part.read_classes("valid"))) == [4, 4]


def test_windows_are_validated_at_earlier_times_by_fits_to_what_is_before(tmp_path):
    task, source = open_data(write_series(tmp_path), {"lookback": 10, "horizon": 4, "target": "n", "kind": "forecast"})
    first, *earlier = open_parts(task, source)
    assert first is task and len(earlier) == PARTS - 1
    latest = task._starts["valid"].min()
    for part in earlier:
        train, valid = part._starts["train"], part._starts["valid"]
        assert len(valid) == len(task._starts["valid"]) == part.splits["valid"].size
        assert train.max() + 4 <= valid.min() and valid.max() < latest
        assert np.array_equal(part._starts["test"], task._starts["test"])
        latest = valid.min()


def test_data_with_enough_validation_rows_of_their_own_and_folds_have_no_parts(tmp_path):
    place = write_rows(tmp_path)
    task, source = open_data(place, {"valid": 0.5})
    assert open_parts(task, {**source, "options": {"fold": "1/3"}}) == []
    (tmp_path / "train.csv").rename(tmp_path / "valid.csv")
    write_rows(tmp_path)
    with pytest.raises(FoldError, match="valid_part=1/5 is for data without validation rows; leave it out"):
        open_task(place, valid_part="1/5")
    own, source = open_data(place, {})
    assert open_parts(own, source) == []


def test_a_part_must_exist(tmp_path):
    with pytest.raises(UserError, match="valid_part=6/5: write 1/5 to 5/5"):
        open_task(write_rows(tmp_path), valid_part="6/5")


def test_the_page_says_how_many_rows_rank_the_baselines(tmp_path):
    settings = CompareSettings(models="rnn", steps=2, tune=1)
    comparison = start_comparison(write_rows(tmp_path), {}, settings, tmp_path / "out")
    for result in runner.run(comparison.jobs(), runner.Here(), comparison.folder / "jobs"):
        comparison.results[result.key] = result
    results = collect_results(comparison)
    assert results.ranking_rows == 40
    assert "Baselines are ranked by 40 rows, each scored by a fit without it." in caption(results, 1, 4)
    name, fit = next((name, fit) for name, fit in baselines(comparison.task).items() if "TF-IDF" in name)
    row = next(row for row in results.rows if row.name == name)
    parts = open_parts(comparison.task, comparison.source)
    assert row.valid == score_parts(fit, parts, fit(parts[0]).decision, 16)["valid"][results.metric.name]
