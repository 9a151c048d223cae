"""Batches: every example once, similar lengths together, the same order for the same seed."""

import random

import numpy as np
import polars as pl
import pytest
import torch

from seqloom.lab.data.pipeline.ragged import Ragged, RaggedWriter
from seqloom.lab.data.pipeline.rows import order_batches
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import END, IGNORE, PAD, START

WORDS = [f"w{i}" for i in range(50)]


def texts(n=400, seed=0):
    own = random.Random(seed)
    return [" ".join(own.choices(WORDS, k=own.randint(3, 60))) for _ in range(n)]


def labelled(n=400):
    return pl.DataFrame({"text": texts(n), "label": [["a", "b"][i % 2] for i in range(n)]})


@pytest.mark.parametrize("how", [{"batch": 16}, {"tokens": 500}])
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_example_comes_once(how, split):
    task = open_task(labelled())
    batches = list(task.batches(split, **how, seed=2))
    rows = torch.cat([b.rows for b in batches])
    assert rows.sort().values.equal(torch.arange(task.splits[split].size))
    assert len(batches) == task.count(split, **how, seed=2)


def test_a_token_budget_holds_with_padding_and_padding_is_small():
    batches = list(open_task(labelled()).batches("train", tokens=600))
    assert all(b.x.numel() <= 600 for b in batches)
    assert sum(b.steps for b in batches) / sum(b.x.numel() for b in batches) > 0.8
    one = list(open_task(labelled()).batches("test", tokens=1))
    assert all(len(b) == 1 for b in one)


def are_equal(one, other):
    return len(one) == len(other) and all(
        a.x.equal(b.x) and a.rows.equal(b.rows) and a.y.equal(b.y) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("how", [{"batch": 16}, {"tokens": 500}])
def test_the_order_depends_on_seed_and_epoch_and_can_be_resumed_in_the_middle(how):
    task = open_task(labelled())
    whole = list(task.batches("train", **how, seed=5, epoch=1))
    assert are_equal(whole, list(task.batches("train", **how, seed=5, epoch=1)))
    assert are_equal(whole[7:], list(task.batches("train", **how, seed=5, epoch=1, skip=7)))
    assert not are_equal(whole, list(task.batches("train", **how, seed=5, epoch=2)))
    assert not are_equal(whole, list(task.batches("train", **how, seed=6, epoch=1)))


def test_a_test_split_has_one_order():
    task = open_task(labelled())
    assert are_equal(list(task.batches("test", batch=8, seed=1)), list(task.batches("test", batch=8, seed=2, epoch=3)))


def test_a_batch_contains_the_rows_it_names():
    data = labelled()
    task = open_task(data, min_count=1)
    for batch in task.batches("valid", batch=7):
        for x, n, row, y in zip(batch.x, batch.lengths, batch.rows, batch.y, strict=True):
            original = data.row(int(task._index["valid"][row]), named=True)
            assert task.encoding.x.decode(x[:n].tolist()) == original["text"]
            assert (x[n:] == PAD).all()
            assert task.decode(y.unsqueeze(0)) == [original["label"]]


def test_batches_are_not_all_of_one_length_at_first():
    longest = [int(b.lengths.max()) for b in open_task(labelled()).batches("train", batch=16)]
    assert longest != sorted(longest)


def test_lengths_of_zero_and_no_rows_at_all_are_batched():
    assert [b.tolist() for b in order_batches(np.array([0, 0, 3]), None, 2, None)] == [[0, 1], [2]]
    assert order_batches(np.array([], dtype=np.int64), 4, None, (0, 0)) == []
    assert order_batches(np.array([], dtype=np.int64), None, 8, (0, 0)) == []


def test_ragged_rows_are_read_from_disk_as_written(tmp_path):
    own = np.random.default_rng(0)
    lengths = own.integers(0, 6, 20)
    values = own.normal(size=(lengths.sum(), 3)).astype(np.float32)
    writer = RaggedWriter(tmp_path, "x")
    cut = lengths[:7].sum()
    writer.add(values[:cut], lengths[:7])
    writer.add(values[cut:], lengths[7:])
    writer.close()
    ragged = Ragged.open(tmp_path, "x")
    rows = np.array([19, 0, 7, 7])
    padded, counted = ragged.pad(rows, fill=9)
    starts = np.cumsum(lengths) - lengths
    for b, row in enumerate(rows):
        assert (padded[b, : lengths[row]] == values[starts[row] : starts[row] + lengths[row]]).all()
        assert (padded[b, lengths[row] :] == 9).all() and counted[b] == lengths[row]


def test_padded_tags_have_no_loss():
    data = pl.DataFrame(
        {"tokens": [["a"] * (i % 5 + 1) for i in range(40)], "tags": [["O"] * (i % 5) + ["B"] for i in range(40)]}
    )
    task = open_task(data)
    batch = next(task.batches("train", batch=30))
    beyond = torch.arange(batch.x.shape[1]) >= batch.lengths.unsqueeze(1)
    assert batch.y.shape == batch.x.shape and torch.equal(batch.y == IGNORE, beyond)
    assert task.decode(batch.y.clamp(min=0), batch.lengths)[0][-1] == "B"


def test_a_translation_has_an_end_token_and_its_lengths():
    data = pl.DataFrame({"source": texts(60, 1), "target": texts(60, 2)})
    task = open_task(data, input="source", target="target", min_count=1)
    batch = next(task.batches("train", batch=20))
    ends = batch.y.gather(1, batch.y_lengths.unsqueeze(1) - 1)
    assert (ends == END).all() and ((batch.y == END).sum(1) == 1).all()
    row = int(task._index["train"][batch.rows[0]])
    assert task.decode(batch.y)[0] == data["target"][row]


def test_a_text_to_be_generated_is_shifted_by_one():
    data = pl.DataFrame({"name": [f"{'ab' * (i % 7 + 1)}{i}" for i in range(60)]})
    task = open_task(data, kind="generate", near_duplicates=False)
    batch = next(task.batches("train", batch=20))
    assert (batch.x[:, 0] == START).all()
    for x, y, n in zip(batch.x, batch.y, batch.lengths, strict=True):
        assert x[1:n].equal(y[: n - 1]) and y[n - 1] == END
        assert (x[n:] == PAD).all() and (y[n:] == IGNORE).all()
    prompt = task.encode(["abab"])
    assert prompt.lengths.tolist() == [4] and END not in prompt.x


def stream(tmp_path, n=3_000):
    own = random.Random(0)
    (tmp_path / "a.txt").write_text("".join(own.choice("abcdef \n") for _ in range(n)))
    return open_task(tmp_path / "a.txt", lookback=20)


def test_a_long_text_continues_from_batch_to_batch_with_every_step_once(tmp_path):
    task = stream(tmp_path)
    ids = torch.from_numpy(task._ids["train"].copy()).long()
    for epoch in range(3):
        lanes = [[] for _ in range(6)]
        answers = [[] for _ in range(6)]
        batches = list(task.batches("train", batch=6, seed=1, epoch=epoch))
        assert [b.carry for b in batches] == [False] + [True] * (len(batches) - 1)
        assert len(batches) == task.count("train", batch=6, seed=1, epoch=epoch)
        for batch in batches:
            assert batch.x.shape[1] <= 20
            for lane in range(6):
                n = int(batch.lengths[lane])
                lanes[lane] += batch.x[lane, :n].tolist()
                answers[lane] += batch.y[lane, :n].tolist()
        assert sum(lanes, []) == ids[:-1].tolist() and sum(answers, []) == ids[1:].tolist()  # noqa: RUF017


def test_pieces_of_a_long_text_start_elsewhere_each_epoch_but_not_in_a_test(tmp_path):
    task = stream(tmp_path)
    first = {next(task.batches("train", batch=6, epoch=e)).x.shape[1] for e in range(12)}
    assert len(first) > 4
    assert {next(task.batches("test", batch=2, epoch=e)).x.shape[1] for e in range(4)} == {20}
    middle = list(task.batches("train", batch=6, seed=3))[5:]
    assert all(a.x.equal(b.x) for a, b in zip(middle, task.batches("train", batch=6, seed=3, skip=5), strict=True))


def test_a_long_text_is_split_by_position(tmp_path):
    task = stream(tmp_path)
    whole = (tmp_path / "a.txt").read_text()
    parts = [task.encoding.x.decode(task._ids[name].tolist()) for name in ("train", "valid", "test")]
    assert "".join(parts) == whole and len(parts[0]) / len(whole) == pytest.approx(0.9, abs=0.02)


def hours(n=200):
    return pl.DataFrame(
        {
            "date": [f"2026-01-{1 + i // 24:02d} {i % 24:02d}:00:00" for i in range(n)],
            "a": [float(i) for i in range(n)],
            "b": [float(-(i % 9)) for i in range(n)],
        }
    )


def test_windows_read_across_the_border_but_forecast_only_their_split():
    task = open_task(hours(), lookback=10, horizon=4, borders="120/40/40", target="a")
    sizes = {name: split.size for name, split in task.splits.items()}
    assert sizes == {"train": 120 - 14 + 1, "valid": 40 - 4 + 1, "test": 40 - 4 + 1}
    for name, low, high in (("train", 10, 120), ("valid", 120, 160), ("test", 160, 200)):
        future = torch.cat([b.y for b in task.batches(name, batch=32)])
        values = torch.tensor(task.decode(future)).flatten()
        assert values.min() == pytest.approx(low, abs=1e-3) and values.max() == pytest.approx(high - 1, abs=1e-3)


def test_a_window_is_followed_by_its_forecast():
    task = open_task(hours(), lookback=10, horizon=4)
    assert task.target.steps == 4 and task.target.names == ("a", "b") == task.input.names
    for batch in task.batches("train", batch=16, seed=1):
        back = task.encoding.x.scale.invert(batch.x.double().numpy())
        ahead = np.array(task.decode(batch.y))
        np.testing.assert_allclose(ahead[:, 0, 0], back[:, -1, 0] + 1, rtol=1e-4)
        np.testing.assert_allclose(np.diff(ahead[..., 0], axis=1), 1, rtol=1e-3)
        assert batch.timespans is None and (batch.lengths == 10).all()


def test_the_scale_of_a_table_is_that_of_its_training_rows():
    task = open_task(hours(), lookback=10, horizon=4, borders="0.5/0.25/0.25")
    assert task.encoding.x.scale.mean[0] == pytest.approx(np.arange(100).mean())


def test_rows_of_a_table_are_put_in_order_and_groups_are_never_mixed():
    two = pl.concat(
        [hours(60).with_columns(g=pl.lit("x")), hours(60).with_columns(g=pl.lit("y"), a=pl.col("a") + 1000)]
    )
    task = open_task(two.sample(fraction=1, shuffle=True, seed=0), group="g", kind="forecast", lookback=6, horizon=2)
    for batch in task.batches("train", batch=8):
        back = task.encoding.x.scale.invert(batch.x.double().numpy())[..., 0]
        np.testing.assert_allclose(np.diff(back, axis=1), 1, atol=1e-2)
    assert len(next(task.read_rows(two))) == 2


def test_gaps_in_a_table_are_marked_in_x_and_nan_in_y():
    data = hours(100).with_columns(b=pl.when(pl.col("a") % 7 == 3).then(None).otherwise(pl.col("b")))
    task = open_task(data, lookback=8, horizon=3)
    assert task.input.names == ("a", "b", "missing:b")
    batch = next(task.batches("train", batch=16))
    gaps = batch.x[..., 2] == 1
    assert gaps.any() and batch.x[..., 1][gaps].isfinite().all() and batch.y[..., 1].isnan().any()
    assert any("rows with missing values" in w for w in task.notes.warnings)
