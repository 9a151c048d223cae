"""Splits: stratified, grouped, by time, near-duplicates together, and recorded."""

import random
from collections import Counter

import numpy as np
import polars as pl
import pytest

from seqloom.lab.data.pipeline import splits
from seqloom.lab.data.pipeline.splits import cluster_texts
from seqloom.lab.data.registry import open_task

WORDS = [f"w{i}" for i in range(400)]


def text(seed, n=12):
    return " ".join(random.Random(seed).choices(WORDS, k=n))


def rows(task):
    return {name: task._index[name].tolist() for name in task.splits}


def table(n=200, **more):
    return pl.DataFrame(
        {"text": [text(i) for i in range(n)], "label": [["a", "a", "a", "b"][i % 4] for i in range(n)]} | more
    )


def test_a_random_split_has_every_row_once_and_the_same_share_of_every_class():
    data = table()
    parts = rows(open_task(data))
    assert {k: len(v) for k, v in parts.items()} == {"train": 160, "valid": 20, "test": 20}
    assert sorted(i for part in parts.values() for i in part) == list(range(200))
    for part in parts.values():
        assert Counter(data["label"][i] for i in part)["b"] == len(part) / 4


def test_shares_that_leave_nothing_to_train_on_are_an_error():
    with pytest.raises(ValueError, match=r"valid=0\.6 and test=0\.6 leave nothing to train on"):
        open_task(table(), valid=0.6, test=0.6)


def test_too_few_rows_to_learn_from_are_reported():
    assert "only 3 rows to train on" in str(open_task(table(5), target="label", kind="classify").notes)
    assert not open_task(table(40)).notes.warnings


def test_large_data_holds_out_a_limited_number_of_rows_unless_asked(monkeypatch):
    monkeypatch.setattr(splits, "MAX_HELD_OUT", 12)
    sizes = {name: split.size for name, split in open_task(table(), valid=0.2).splits.items()}
    assert sizes == {"train": 148, "valid": 40, "test": 12}


def test_the_seed_of_the_split_and_nothing_else_decides_it():
    data = table()
    one, same, other = (open_task(data, split_seed=s, limit=m) for s, m in ((0, 100), (0, 99), (1, 100)))
    assert rows(one) == rows(same) != rows(other)
    assert one.splits == same.splits and one.splits["test"].hash != other.splits["test"].hash


def test_rows_of_a_group_stay_on_one_side():
    data = table(who=[f"speaker {i % 23}" for i in range(200)])
    parts = rows(open_task(data, group="who"))
    sides = [{data["who"][i] for i in part} for part in parts.values()]
    assert all(sides) and sum(map(len, sides)) == 23


def test_later_rows_are_tested_on_when_time_is_given():
    data = table(when=[f"2026-{1 + (i * 7 % 200) // 28:02d}-{1 + (i * 7 % 200) % 28:02d}" for i in range(200)])
    parts = rows(open_task(data, time="when", target="label"))
    dates = {name: [data["when"][i] for i in part] for name, part in parts.items()}
    assert max(dates["train"]) <= min(dates["valid"]) and max(dates["valid"]) <= min(dates["test"])


@pytest.mark.parametrize("form", ["{0}-{1}-{2}", "{2}.{1}.{0}", "{1}/{2}/{0}", "{2}/{1}/{0} 7:30"])
def test_dates_are_compared_as_dates_however_they_are_written(form):
    days = [(2026 + k // 336, 1 + k // 28 % 12, 1 + k % 28) for k in (i * 7 % 200 + 300 for i in range(200))]
    data = table(when=[form.format(*day) for day in days])
    parts = rows(open_task(data, time="when", target="label"))
    assert max(days[i] for i in parts["train"]) < min(days[i] for i in parts["valid"])
    assert max(days[i] for i in parts["valid"]) < min(days[i] for i in parts["test"])


def test_a_date_whose_day_may_be_its_month_is_an_error():
    data = table(when=[f"{1 + i % 12}/{1 + i // 12 % 12}/2026" for i in range(200)])
    with pytest.raises(
        ValueError, match=r"'1/1/2026' in 'when' may have the day or the month first; write it as 2026-12-31"
    ):
        open_task(data, time="when", target="label")


def test_a_split_by_time_leaves_no_group_on_two_sides():
    data = table(when=list(range(200)), who=[f"patient {i * 13 % 31}" for i in range(200)])
    parts = rows(open_task(data, time="when", group="who", target="label"))
    sides = [{data["who"][i] for i in part} for part in parts.values()]
    assert all(sides) and sum(map(len, sides)) == 31


@pytest.mark.parametrize("wide", [False, True])
def test_equal_series_stay_on_one_side(wide):
    lists = np.random.default_rng(0).random((50, 9))[np.arange(200) % 50]
    columns = {f"t{k}": lists[:, k] for k in range(9)} if wide else {"x": lists.tolist()}
    task = open_task(pl.DataFrame(columns | {"label": ["a", "a", "b", "b", "b"] * 40}))
    sides = [{i % 50 for i in part} for part in rows(task).values()]
    assert all(sides) and sum(map(len, sides)) == 50
    assert "series that repeat another one: 150" in str(task.notes)


def test_a_text_on_both_sides_of_a_given_split_is_reported():
    data = table().with_columns(split=pl.Series(["train"] * 150 + ["test"] * 50))
    data = pl.concat([data, data.head(3).with_columns(split=pl.lit("test"))])
    assert "texts of 'test' that also occur in training: 3 of 53" in str(open_task(data).notes)


def test_near_duplicates_are_found_and_others_are_not():
    long = [text(i, 200) for i in range(30)]
    near = [t.replace(t.split()[30], "other", 1) for t in long[:10]]
    shouted = [t.upper() + "!!" for t in long[10:15]]
    clusters = cluster_texts([pl.Series(long[:20]), pl.Series(long[20:] + near + shouted)])
    assert [clusters[i] == clusters[30 + i] for i in range(10)] == [True] * 10
    assert [clusters[10 + i] == clusters[40 + i] for i in range(5)] == [True] * 5
    assert len(np.unique(clusters[:30])) == 30


def test_short_texts_are_duplicates_only_when_equal():
    clusters = cluster_texts([pl.Series(["Ann Lee", "ann  lee", "Ann Loe", "", None, "王小明", "王小朋"])])
    assert clusters[0] == clusters[1] != clusters[2]
    assert clusters[3] == clusters[4] and clusters[5] != clusters[6]


def test_near_duplicates_stay_on_one_side_by_default():
    base = [text(i, 40) for i in range(60)]
    data = pl.DataFrame({"text": base + [t + " again" for t in base], "label": ["a", "b"] * 60})

    def split_rows(**options):
        side = {i: name for name, part in rows(open_task(data, **options)).items() for i in part}
        return sum(side[i] != side[i + 60] for i in range(60))

    assert split_rows() == 0 < split_rows(near_duplicates=False)


def test_existing_splits_stay_and_only_validation_rows_are_taken_from_training():
    data = table(120, split=["train"] * 100 + ["test"] * 20)
    parts = rows(open_task(data))
    assert parts["test"] == list(range(100, 120))
    assert len(parts["valid"]) == 10 and sorted(parts["train"] + parts["valid"]) == list(range(100))
    three = table(120, split=["train"] * 90 + ["dev"] * 20 + ["test"] * 10)
    assert {k: len(v) for k, v in rows(open_task(three)).items()} == {"train": 90, "valid": 20, "test": 10}


def test_texts_of_the_test_that_training_has_are_counted():
    data = {
        "train": table(100),
        "test": pl.concat([table(100).head(3), pl.DataFrame({"text": ["new one"], "label": ["a"]})]),
    }
    warnings = open_task(data, valid=0.01).notes.warnings
    assert [w for w in warnings if w.startswith("texts of 'test' that also occur in training: 3 of 4")]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_shares_are_kept(share):
    parts = rows(open_task(table(), valid=share, test=share, near_duplicates=False))
    assert len(parts["valid"]) == len(parts["test"]) == round(200 * share)


def test_a_few_large_groups_leave_no_split_empty():
    data = pl.DataFrame({"text": [text(i % 4, 30) for i in range(40)], "label": [["a", "b"][i % 2] for i in range(40)]})
    assert all(split.size == 10 for split in list(open_task(data).splits.values())[1:])
    with pytest.raises(ValueError, match="too few different examples"):
        open_task(pl.DataFrame({"text": [text(0, 30), text(0, 30).upper()] * 5, "label": ["a", "b"] * 5}))


def test_a_sample_of_rows_is_drawn_at_random_and_keeps_the_numbers_of_the_file(tmp_path):
    data = table(400).with_columns(text=pl.when(pl.int_range(400) == 399).then(None).otherwise(pl.col("text")))
    file = tmp_path / "data.csv"
    data.write_csv(file)
    task = open_task(file, rows=399, target="label")
    assert sum(split.size for split in task.splits.values()) in (398, 399)
    task = open_task(file, rows=50, target="label")
    assert sum(split.size for split in task.splits.values()) == 50
    assert "a random sample of 50 of 400 rows is used" in str(task.notes)
    other = open_task(file, rows=50, target="label", split_seed=1)
    assert task.splits["train"].hash != other.splits["train"].hash
    assert open_task(file, rows=50, target="label").splits == task.splits
    assert task.open_file(file).splits["test"].size == 399  # other files are read whole
    bad = [
        note for seed in range(8) for note in open_task(file, rows=200, target="label", split_seed=seed).notes.warnings
    ]
    assert any("row 400" in note for note in bad)


def test_a_sample_of_a_table_in_time_is_its_end():
    values = np.arange(500.0)
    task = open_task(pl.DataFrame({"v": values}), kind="forecast", lookback=8, horizon=2, rows=100)
    x = next(task.batches("train", batch=500)).x
    assert sum(split.size for split in task.splits.values()) < 100
    assert float(task.decode(next(task.batches("test", batch=500)).y)[-1][-1][0]) == pytest.approx(499, abs=0.01)
    assert float(task.encoding.x.scale.mean[0]) > 400 and len(x)
