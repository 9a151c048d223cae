"""Score a model on a whole split: the sums that every row contributes to the metrics of its kind."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.kinds.columns import Columns, to_array
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.stats.metrics import Array, Scores, compute_scores


def score(
    model: ForTask,
    task: Task,
    split: str,
    *,
    batch: int | None = None,
    tokens: int | None = None,
    intervals: bool = False,
    full: bool = True,
    within: AbstractContextManager[Any] | None = None,
) -> Scores:
    """Compute every metric of the task's kind on a whole split.

    Args:
        batch: Examples per batch.
        tokens: Time steps per batch, instead of `batch`.
        intervals: Whether to compute 95% intervals.
        full: Whether to decode translations too, which takes longer.
        within: A context for each batch, such as autocast.
    """
    columns = score_split(model, task, split, batch=batch, tokens=tokens, full=full, within=within)
    return compute_scores(columns, intervals, overlap=task.overlap)


@torch.no_grad()
def score_split(
    model: ForTask,
    task: Task,
    split: str,
    *,
    batch: int | None = None,
    tokens: int | None = None,
    full: bool = True,
    within: AbstractContextManager[Any] | None = None,
    only: Collection[int] | None = None,
    decode_every: int = 1,
) -> Columns:
    """Return what every row of a split, or `only` some positions, contribute to the metrics; see `score`.

    Translations are decoded in every `decode_every`-th batch; their columns are 0 for the rows of other batches.
    """
    if task.splits[split].size is None:
        raise UserError(f"split {split!r} of task {task.name!r} has no end; score 'valid' or 'test'")
    device, training = next(model.parameters()).device, model.training
    parts: list[Columns] = []
    state: Any = None
    model.eval()
    try:
        batches = task.batches(split, batch=batch if batch or tokens else 64, tokens=tokens)
        for number, one in enumerate(batches):
            if only is not None:
                one = one.select(torch.tensor([row in only for row in one.rows.tolist()]))  # noqa: PLW2901
                if not len(one):
                    continue
            with within or nullcontext():
                decodes = full and number % decode_every == 0
                columns, state = _score_batch(model, task, one.to(device), state if one.carry else None, decodes)
            parts.append(columns)
    finally:
        model.train(training)
    return {
        name: np.concatenate([_get_column(part, name, first) for part in parts])
        for name, first in (parts[0] if parts else {}).items()
    }


def _get_column(part: Columns, name: str, like: Array) -> Array:
    """Return a column of a batch; zeros of the shape of `like` where the batch was not decoded."""
    return part[name] if name in part else np.zeros((len(part["targets"]), *like.shape[1:]))


def _score_batch(
    model: ForTask, task: Task, batch: Batch, state: Tensor | State | None, full: bool
) -> tuple[Columns, Tensor | State | None]:
    """Score one batch; split it in halves if it does not fit into memory."""
    try:
        scores, after = model.scores(batch, state)
        kind = kind_of(task)
        columns = {"nats": to_array(model.row_losses(scores, batch)), "targets": to_array(model.count_targets(batch))}
        columns |= kind.score(task, batch, model.choose(scores, batch))
        return (columns | kind.score_decoded(task, batch, model) if full else columns), after
    except torch.OutOfMemoryError:
        if len(batch) < 2 or state is not None:
            raise
    torch.cuda.empty_cache()
    halves = [_score_batch(model, task, batch.shard(k, 2), None, full)[0] for k in range(2)]
    return {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}, None
