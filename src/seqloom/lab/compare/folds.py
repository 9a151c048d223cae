"""Cross-validation of small data: every row is a test row once.

With few rows, the score of one small test split depends mostly on chance. The rows are divided into folds; every
baseline and every final model is trained once for each fold, on the other rows, and tested on it. The test rows of all
folds together yield one score with one interval. Screening and learning rates are those of the first fold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.splits import FoldError
from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Task
from seqloom.lab.kinds.columns import Columns

FEW_ROWS = 500  # with fewer rows, all splits together, the default is cross-validation
FOLDS = 5


def open_folds(task: Task, source: Mapping[str, Any] | None, folds: int | None) -> list[Task]:
    """Return the task of each fold; none if there is no cross-validation.

    Args:
        task: The task as it would be split once.
        folds: The number of folds of the settings: 1 for none, None for the default.

    Raises:
        UserError: If folds were asked for and the data cannot be divided into them.
    """
    rows = sum(split.size or FEW_ROWS for split in task.splits.values())
    if folds == 1 or (folds is None and rows >= FEW_ROWS):
        return []
    if not isinstance(task, RowsTask) or not source:
        if folds is None:
            return []
        raise UserError(f"folds={folds} is for files whose rows are examples; leave it out")
    count = folds or FOLDS
    try:
        tasks = [reopen(add_fold(source, k, count)) for k in range(count)]
        if any(one.target != tasks[0].target for one in tasks):
            raise FoldError(f"folds={count}: a class has too few rows to be in the training rows of each fold")
    except FoldError:
        if folds is None:
            return []
        raise
    return tasks


def add_fold(source: Mapping[str, Any], fold: int, folds: int) -> dict[str, Any]:
    """Return the source record of a fold, counted from 0; with a single fold, a copy of the record."""
    if folds == 1:
        return dict(source)
    return {**source, "options": {**source["options"], "fold": f"{fold + 1}/{folds}"}}


def join_folds(columns: Mapping[str, Mapping[int, Columns]]) -> tuple[dict[str, list[Columns]], list[int]]:
    """Join the test rows of the folds that all models have; a model that shares no fold with the others is left out.

    Args:
        columns: For each model the scores of its test rows by fold.

    Returns:
        The joined columns of each model, and the folds.
    """
    names, folds = find_common_folds(columns)
    joined = {}
    for name in names:
        parts = [columns[name][k] for k in folds]
        joined[name] = [{key: np.concatenate([part[key] for part in parts]) for key in parts[0]}]
    return joined, folds


def find_common_folds(folds: Mapping[str, Collection[int]]) -> tuple[list[str], list[int]]:
    """Return the folds that all models have, and these models, without those that share no fold with the others."""
    common: set[int] = set()
    names: list[str] = []
    for name in sorted(folds, key=lambda name: -len(folds[name])):
        rest = common & set(folds[name]) if names else set(folds[name])
        if rest:
            common = rest
            names.append(name)
    return names, sorted(common)
