"""How many held-out rows a comparison scores: all of them, or a sample if scoring would take much of the budget."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from seqloom.lab.data.task import Batch, Task
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.model import build

SHARES = {"valid": 0.01, "test": 0.03}  # share of the budget for scoring a split once
HIDDEN, BATCH = 128, 32  # sizes of the model that is timed


def choose_strides(task: Task, seconds: float) -> dict[str, int]:
    """Return {split: n} for the splits of which only every n-th row should be scored.

    Args:
        seconds: The budget of the comparison.
    """
    fewest = kind_of(task).fewest_scored
    sizes = {split: task.splits[split].size or 0 for split in SHARES}
    if kind_of(task).continues_text or all(size < 2 * fewest for size in sizes.values()):
        return {}  # a text is read piece by piece, each with the state after the one before
    row_seconds = time_row(task)
    strides = {}
    for split, share in SHARES.items():
        rows = max(fewest, int(share * seconds / row_seconds))
        if sizes[split] >= 2 * rows:
            strides[split] = sizes[split] // rows
    return strides


@torch.no_grad()
def time_row(task: Task) -> float:
    """Return the seconds in which a small model scores a row of medium length."""
    middle = (task.count("test", batch=BATCH) or 1) // 2
    batch = next(iter(task.batches("test", batch=BATCH, skip=middle)))
    with use_one_thread(), torch.random.fork_rng(devices=[]):
        model = build(task, TrainSettings(model="gru", hidden=HIDDEN, letters=0)).eval()
        score_batch(model, task, batch.shard(0, len(batch)))  # the first call takes longer
        began = time.perf_counter()
        score_batch(model, task, batch)
        return (time.perf_counter() - began) / len(batch)


def score_batch(model: ForTask, task: Task, batch: Batch) -> None:
    """Do the work of scoring a batch: predictions, and translations of a text."""
    model.scores(batch)
    if kind_of(task).writes:
        model.predict(replace(batch, y=None, y_lengths=None))
