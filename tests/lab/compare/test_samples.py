"""Samples of a task's rows, and how many held-out rows a comparison scores."""

import pytest

from seqloom.lab.compare import data
from seqloom.lab.compare.data import HeldOutSample, TrainingSample, choose_strides, load_task, whole_task
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Split


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """200 texts of 1 to 40 words."""
    file = tmp_path_factory.mktemp("texts") / "texts.csv"
    lines = [f"{' '.join(f'w{k % 7}' for k in range(1 + n % 40))} {n},{'ab'[n % 2]}" for n in range(200)]
    file.write_text("text,label\n" + "\n".join(lines) + "\n")
    return str(file)


@pytest.fixture(scope="module")
def task(texts):
    return open_task(texts, near_duplicates=False)


def row_sets(task, split, **sizes):
    return [one.rows.tolist() for one in task.batches(split, **sizes)]


def test_a_sample_of_the_training_rows_leaves_the_other_splits_alone():
    task = open_task("digits")
    sample = TrainingSample(task, 100)
    assert sum(len(batch) for batch in sample.batches("train", batch=32)) == 128  # whole batches
    assert sum(len(batch) for batch in sample.batches("test", batch=32)) == task.splits["test"].size
    assert sample.splits["train"].size == 100 and sample.count("train", batch=32) == 4


@pytest.mark.parametrize("sizes", [{"batch": 16}, {"tokens": 100}])
def test_a_training_sample_counts_and_skips_whole_batches_of_any_size(task, sizes):
    sample = TrainingSample(task, 50)
    batches = row_sets(sample, "train", **sizes)
    assert 50 <= sum(map(len, batches)) < 50 + len(batches[-1])
    assert batches == row_sets(task, "train", **sizes)[: len(batches)]
    assert sample.count("train", **sizes) == len(batches)
    for skip in (1, len(batches) - 1, len(batches)):
        assert row_sets(sample, "train", **sizes, skip=skip) == batches[skip:]


def test_a_held_out_sample_has_the_same_rows_for_every_size_of_a_batch(task):
    sample = HeldOutSample(task, {"test": 3})
    rows = [row for batch in row_sets(sample, "test", batch=2) for row in batch]
    assert len(rows) == len(set(rows)) == sample.splits["test"].size == 7  # of 20
    for size in (1, 5, 100):
        batches = row_sets(sample, "test", batch=size)
        assert [row for batch in batches for row in batch] == rows and sample.count("test", batch=size) == len(batches)
        assert row_sets(sample, "test", batch=size, skip=1) == batches[1:]
    for split in ("train", "valid"):
        assert row_sets(sample, split, batch=8) == row_sets(task, split, batch=8)
    assert "7 of 20 test rows are scored" in sample.notes[-1].text and sample.notes[-1] not in task.notes


def test_a_source_with_strides_opens_a_sample_of_the_whole_task(texts):
    source = {"data": texts, "options": {"near_duplicates": False}}
    sample = load_task(source | {"strides": {"valid": 2}})
    assert sample.splits["valid"].size == 10
    assert whole_task(sample).splits["valid"].size == 20 and whole_task(load_task(source)) is load_task(source)


@pytest.mark.parametrize(
    ("test_rows", "seconds", "row_seconds", "stride"),
    [
        (10_000, 240.0, 0.0001, None),  # scored in a second
        (10_000, 240.0, 0.002, 2),
        (100_000, 240.0, 0.1, 100),  # never fewer than 1,000 rows
        (1_500, 240.0, 0.1, None),
    ],
)
def test_rows_are_left_out_if_scoring_would_take_much_of_the_budget(
    task, monkeypatch, test_rows, seconds, row_seconds, stride
):
    monkeypatch.setattr(data, "time_row", lambda _: row_seconds)
    monkeypatch.setattr(task, "splits", {**task.splits, "test": Split(test_rows, "")})
    assert choose_strides(task, seconds).get("test") == stride


def test_the_time_of_a_row_is_measured(task):
    assert 0 < data.time_row(task) < 60
