"""Saved tasks encode, decode and open other files; they are JSON, never pickle."""

import json

import polars as pl
import pytest
import torch

from seqloom.lab.data.registry import load_task, open_task
from seqloom.lab.data.task import UNSEEN

N = 80


def series(i):
    return [[float(i + t), float(-t)] for t in range(i % 5 + 2)]


CASES = {
    "classify": ({"text": [f"some w{i % 9} words {i}" for i in range(N)], "label": ["a", "b"] * (N // 2)}, {}, "text"),
    "bpe": (
        {"text": [f"some w{i % 9} words {i}" for i in range(N)], "label": ["a", "b"] * (N // 2)},
        {"unit": "bpe", "vocabulary": 60},
        "text",
    ),
    "tag": ({"tokens": [["a", "b", f"c{i % 7}"] for i in range(N)], "tags": [["O", "O", "B"]] * N}, {}, "tokens"),
    "regress": ({"series": [series(i) for i in range(N)], "value": [i / 3 for i in range(N)]}, {}, "series"),
    "wide": ({f"p{i}": [i * 1.5 + j for j in range(N)] for i in range(9)} | {"label": ["a", "b"] * (N // 2)}, {}, None),
    "translate": (
        {"source": [f"one {i % 9} two {i}" for i in range(N)], "target": [f"eins {i % 9} zwei" for i in range(N)]},
        {"input": "source"},
        "source",
    ),
    "generate": ({"text": [f"name{i}" for i in range(N)]}, {"kind": "generate"}, "text"),
    "transcribe": (
        {
            "audio": [[0.1 * (t % (i + 2)) for t in range(900)] for i in range(N)],
            "rate": [8000] * N,
            "text": [f"number {i} is said" for i in range(N)],
        },
        {},
        None,
    ),
}
CASE = pytest.mark.parametrize("case", list(CASES))


def open_case(case):
    columns, options, _ = CASES[case]
    return open_task(pl.DataFrame(columns), **options), pl.DataFrame(columns)


@CASE
def test_new_rows_are_encoded_as_the_task_itself_does(case, tmp_path):
    task, data = open_case(case)
    task.save(tmp_path)
    again = load_task(tmp_path)
    assert (again.kind, again.input, again.target, dict(again.splits)) == (task.kind, task.input, task.target, {})
    batch = next(task.batches("test", batch=4))
    rows = [data.row(int(i), named=True) for i in task._index["test"][batch.rows]]
    for one in (task, again):
        new = one.encode(rows)
        if case == "generate":  # a beginning, without START and END
            assert new.lengths.equal(batch.lengths - 1)
            assert new.x[0, : new.lengths[0]].equal(batch.x[0, 1 : batch.lengths[0]])
        else:
            assert new.x.equal(batch.x) and new.lengths.equal(batch.lengths) and new.y is None


@CASE
def test_predictions_are_decoded_in_the_words_of_the_data(case):
    task, data = open_case(case)
    batch = next(task.batches("test", batch=4))
    truth = data.select(task.encoding.plan.target)[task._index["test"][batch.rows]]
    lengths = batch.lengths if task.kind in ("tag", "generate") else batch.y_lengths
    decoded = task.decode(batch.y.clamp(min=0) if batch.y.dtype == torch.long else batch.y, lengths)
    if task.kind == "regress":
        assert [row[0] for row in decoded] == pytest.approx(truth["value"].to_list(), rel=1e-5)
    elif case == "translate":  # words that training saw once are unknown
        assert [f.split()[0] for f in decoded] == ["eins"] * 4
    else:
        assert decoded == truth.to_series().to_list()


@CASE
def test_a_saved_task_reads_another_file(case, tmp_path):
    task, data = open_case(case)
    task.save(tmp_path)
    other = load_task(tmp_path).open_file(data.head(7))
    assert {name: split.size for name, split in other.splits.items()} == {"test": 7}
    first = next(other.batches("test", batch=7))
    assert first.y is not None and len(first) == 7
    assert other.target == task.target


@CASE
def test_rows_of_a_file_are_read_in_chunks_without_the_target(case, tmp_path):
    task, data = open_case(case)
    _, _, bare = CASES[case]
    file = tmp_path / "new.parquet"
    without = data if task.kind == "generate" else data.drop(task.encoding.plan.target)
    without.write_parquet(file)
    pieces = list(task.read_rows(file, chunk=30))
    assert [len(piece) for piece in pieces] == [30, 30, 20]
    batch = task.encode(pieces[2])
    assert len(batch) == 20
    if bare:
        assert task.encode([row[bare] for row in pieces[2]]).x.equal(batch.x)


def test_a_forecast_starts_from_the_end_of_a_file(tmp_path):
    data = pl.DataFrame({"time": list(range(100)), "v": [i * 2.0 for i in range(100)]})
    task = open_task(data, lookback=6, horizon=2)
    task.save(tmp_path)
    again = load_task(tmp_path)
    (row,) = next(again.read_rows(data))
    assert row == {"time": 99, "v": [188.0, 190.0, 192.0, 194.0, 196.0, 198.0]}
    batch = again.encode([row, [[1.0], [2.0]]])
    assert batch.lengths.tolist() == [6, 2] and batch.x.shape == (2, 6, 1)
    assert again.open_file(data).splits["test"].size == 100 - 8 + 1


def test_a_beginning_of_a_long_text_is_encoded(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 60)
    task = open_task(tmp_path / "a.txt", lookback=10)
    task.save(tmp_path / "t")
    again = load_task(tmp_path / "t")
    assert again.decode(again.encode(["to be", "or"]).x, [5, 2]) == ["to be", "or"]
    assert again.open_file(tmp_path / "a.txt").splits["test"].size == 60 * 19 - 1


def test_only_json_is_written(tmp_path):
    open_case("bpe")[0].save(tmp_path / "t")
    assert [p.name for p in (tmp_path / "t").iterdir()] == ["task.json"]
    assert json.loads((tmp_path / "t" / "task.json").read_text())["x"]["tokenizer"]["model"]["type"] == "BPE"


def test_labels_of_another_file_that_training_never_saw_are_counted():
    task, data = open_case("classify")
    other = task.open_file(data.head(3).with_columns(label=pl.Series(["a", "q", "b"])))
    assert sorted(next(other.batches("test", batch=3)).y.tolist()) == [UNSEEN, 0, 1]
    assert (
        "rows of 'test' with a label that does not occur in training: 1 (first: the frame: row 2, 'q')"
        in other.notes.warnings[0]
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.unlink(), "not a saved task"),
        (lambda p: p.write_text(p.read_text()[:50]), "damaged"),
        (lambda p: p.write_text('{"format": 99}'), "newer seqloom"),
    ],
)
def test_a_folder_that_cannot_be_loaded_says_why(spoil, message, tmp_path):
    open_case("classify")[0].save(tmp_path)
    spoil(tmp_path / "task.json")
    with pytest.raises(ValueError, match=message):
        load_task(tmp_path)


def test_rows_without_the_input_are_refused():
    task, _ = open_case("classify")
    with pytest.raises(ValueError, match="row 2: no column 'text'; did you mean 'txet'"):
        task.encode([{"text": "a"}, {"txet": "b"}])
    with pytest.raises(ValueError, match="no column 'text'"):
        task.open_file(pl.DataFrame({"label": ["a"]}))
