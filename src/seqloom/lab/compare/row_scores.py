"""Per-row contributions to the metrics, stored on disk so that models can be compared row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seqloom.lab.data.task import Task
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.training.scoring import score_split

FILE = "test.npz"
MOST_DECODED = 1_000  # translations of a split, about: decoding takes longer than scoring


def score_rows(model: ForTask, task: Task, split: str, batch: int) -> Columns:
    """Score every row of a split, and leave the model in evaluation mode.

    Returns:
        (n, ...) arrays by name. Every model reads the rows in the same order. Only some translations are decoded:
        their columns, such as "bleu" (n, 10), are 0 for the other rows.
    """
    every = -(-(task.splits[split].size or 1) // MOST_DECODED)
    return score_split(model.eval(), task, split, batch=batch, decode_every=every)


def save(folder: Path, columns: Columns) -> None:
    """Write the columns atomically."""
    work = folder / f".{FILE}"
    with work.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)
    work.rename(folder / FILE)


def load(folder: Path) -> Columns:
    with np.load(folder / FILE, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
