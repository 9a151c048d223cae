"""Rows of a file that a run has not been trained on."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import torch

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Batch, DataSource, Task
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.training.run import Run

BATCH = 256  # rows that are compared at a time


def list_unseen(run: Run, task: Task, file: DataSource) -> tuple[set[int] | None, str]:
    """Find the rows of another file that are not among the training rows of a run, by their encoded input and target.

    Args:
        task: The file, opened with the encoding of the run.
        file: Its name, for messages.

    Returns:
        The rows of its split "test", and a warning. None and "" if all of them are new, or if the training data no
        longer exist.

    Raises:
        UserError: If no row is new.
    """
    if kind_of(task).continues_text:  # its pieces depend on where the text begins
        return None, ""
    try:
        trained = reopen(run.record["source"])
    except UserError:
        return None, ""
    if trained.splits["train"].size is None:
        return None, ""
    known = {key for batch in trained.batches("train", batch=BATCH) for _, key in _identify_rows(batch)}
    keys = [pair for batch in task.batches("test", batch=BATCH) for pair in _identify_rows(batch)]
    unseen = {row for row, key in keys if key not in known}
    if len(unseen) == len(keys):
        return None, ""
    if not unseen:
        raise UserError(
            f"{file}: the run was trained on all of its rows; evaluate the run without a file to score held-out rows"
        )
    seen = len(keys) - len(unseen)
    equal = "equals a training row" if seen == 1 else "equal training rows"
    verb = "is" if seen == 1 else "are"
    return (
        unseen,
        f"{count(seen, 'row')} of {len(keys):,} in {file} {equal}, as the model reads them, and {verb} left out",
    )


def _identify_rows(batch: Batch) -> Iterator[tuple[int, bytes]]:
    """Yield the position and a hash of each row, which do not depend on its padding."""
    y_lengths = batch.lengths if batch.y_lengths is None else batch.y_lengths
    for k, (row, steps, targets) in enumerate(
        zip(batch.rows.tolist(), batch.lengths.tolist(), y_lengths.tolist(), strict=True)
    ):
        key = blake2b(batch.x[k, :steps].contiguous().numpy().tobytes(), digest_size=16)
        if batch.y is not None:
            y = batch.y[k]
            is_sequence = y.dim() > 0 and not torch.is_floating_point(y)
            key.update((y[:targets] if is_sequence else y).contiguous().numpy().tobytes())
        yield row, key.digest()
