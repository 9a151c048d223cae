"""Per-row contributions to the metrics, stored on disk so that models can be compared row by row."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seqloom.lab.data.task import Task
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.training.scoring import score_loss

FILE = "test.npz"
MOST_DECODED = 1_000  # translations of a split, about: decoding takes longer than scoring


@torch.no_grad()
def score_rows(model: ForTask, task: Task, split: str, batch: int) -> Columns:
    """Score every row of a split.

    Returns:
        (n, ...) arrays by name. Every model reads the rows in the same order. Only some translations are decoded:
        their columns, such as "bleu" (n, 10), are 0 for the other rows.
    """
    columns: dict[str, list[Any]] = defaultdict(list)
    texts: Columns = {}
    kind = kind_of(task)
    state: Any = None
    model.eval()
    device = next(model.parameters()).device
    every = -(-(task.splits[split].size or 1) // MOST_DECODED)
    for number, one in enumerate(b.to(device) for b in task.batches(split, batch=batch)):
        scores, state = model.scores(one, state if one.carry else None)
        rows = score_loss(model, scores, one) | kind.score(task, one, model.choose(scores, one))
        for name, column in rows.items():
            columns[name].append(column)
        is_decoded = number % every == 0
        texts = kind.score_decoded(task, one, model) if is_decoded else texts
        for name, column in texts.items():
            columns[name].append(column if is_decoded else np.zeros((len(one), *column.shape[1:])))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def save(folder: Path, columns: Columns) -> None:
    """Write the columns atomically."""
    work = folder / f".{FILE}"
    with work.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)
    work.rename(folder / FILE)


def load(folder: Path) -> Columns:
    with np.load(folder / FILE, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
