"""Per-row contributions to the metrics, stored on disk so that models can be compared row by row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seqloom.lab.data.task import Task
from seqloom.lab.stats.metrics import Array
from seqloom.lab.training.for_task import ForTask
from seqloom.lab.training.scoring import KINDS, score_texts

FILE = "test.npz"
MOST_DECODED = 1_000  # translations of a split, about: decoding takes longer than scoring
Columns = dict[str, Array]


@torch.no_grad()
def score_rows(model: ForTask, task: Task, split: str, batch: int) -> Columns:
    """Score every row of a split.

    Returns:
        (n, ...) arrays by name. Every model reads the rows in the same order. Only some translations are decoded:
        their columns, such as "bleu" (n, 10), are 0 for the other rows.
    """
    columns: dict[str, list[Array]] = defaultdict(list)
    state: Any = None
    model.eval()
    device = next(model.parameters()).device
    every = -(-(task.splits[split].size or 1) // MOST_DECODED)
    for number, one in enumerate(b.to(device) for b in task.batches(split, batch=batch)):
        scores, state = model.scores(one, state if one.carry else None)
        parts = {"nats": model.row_losses(scores, one), "targets": model.count_targets(one)}
        rows = {name: part.double().cpu().numpy() for name, part in parts.items()}
        for name, column in (rows | KINDS[task.kind](task, one, model.choose(scores, one))).items():
            columns[name].append(column)
        if task.kind == "translate":
            decoded = number % every == 0
            new = replace(one, y=None, y_lengths=None)  # a translation must not read its reference
            if decoded:
                texts = score_texts(task, one, model.predict(new))
            for name, column in texts.items():
                columns[name].append(column if decoded else np.zeros((len(one), *column.shape[1:])))
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
