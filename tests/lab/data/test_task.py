"""Batches, notes and the check of arguments."""

import pytest
import torch

from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Batch, Note, Notes, Split


def some_batch():
    x = torch.arange(12).view(4, 3)
    return Batch(x, torch.tensor([3, 2, 1, 0]), torch.arange(4), y=torch.arange(4), timespans=torch.rand(4, 3))


def test_a_batch_counts_real_steps_and_examples():
    assert len(some_batch()) == 4
    assert some_batch().steps == 6


def test_the_parts_of_a_batch_concatenate_to_the_batch():
    batch = some_batch()
    parts = [batch.shard(k, 3) for k in range(3)]
    order = torch.cat([part.rows for part in parts]).argsort()
    for name in ("x", "lengths", "y", "timespans"):
        assert torch.cat([getattr(part, name) for part in parts])[order].equal(getattr(batch, name))


def test_a_batch_moves_with_all_its_tensors():
    moved = some_batch().to("meta")
    assert {moved.x.device.type, moved.lengths.device.type, moved.y.device.type} == {"meta"}
    assert moved.y_lengths is None


def test_notes_are_unique_and_know_which_are_warnings():
    notes = Notes()
    notes.say("a")
    notes.say("a")
    notes.warn("b")
    assert notes == [Note("a"), Note("b", True)]
    assert notes.warnings == ["b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(split="tset", batch=2), "no split 'tset'; it has train, valid, test"),
        (dict(split="test"), "give one of batch and tokens"),
        (dict(split="test", batch=2, tokens=2), "give one of batch and tokens"),
        (dict(split="test", batch=0), "at least 1"),
        (dict(split="test", tokens=-5), "at least 1"),
    ],
)
def test_impossible_batch_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        next(open_task("adding", steps=5).batches(**arguments))


def test_a_split_is_compared_by_size_and_hash():
    assert Split(3, "a") == Split(3, "a") != Split(3, "b")
