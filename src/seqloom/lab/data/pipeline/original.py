"""The original rows of a split in the user's files, before encoding."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.pipeline.row_filter import sample_rows
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.source import Source, read_source
from seqloom.lab.data.task import Notes, Task, Tokens


def read_original(
    source: Mapping[str, Any], task: Task, split: str, positions: Sequence[int]
) -> dict[int, tuple[str, str]]:
    """Return the locations of some rows and their input as text.

    Args:
        source: {"data": ..., "options": {...}}, as returned by `open_data`.
        task: The task that was opened from it.
        split: The name of the split.
        positions: Positions in the split, as in `Batch.rows`.

    Returns:
        Position -> (file and row, text). Empty if the input is not one column of text.
    """
    if not isinstance(task, RowsTask) or not isinstance(task.input, Tokens):
        return {}
    if task.encoding.plan.layout == "long" or len(task.encoding.plan.input) > 1:
        return {}
    data, options = source["data"], make_reading(**source["options"])
    table = read_source(tuple(data) if isinstance(data, list) else data, options, Notes())
    with tempfile.TemporaryDirectory() as folder:
        if options.rows is not None:
            table = sample_rows(table, options.rows, options.split_seed, Path(folder), Notes())
        numbers = dict(zip(task.source_rows(split, positions), positions, strict=True))
        return _find_rows(table, task.encoding.plan.input[0], numbers)


def _find_rows(table: Source, column: str, wanted: Mapping[int, int]) -> dict[int, tuple[str, str]]:
    found = {}
    for start, frame in table.chunks([column]):
        for row in (row for row in wanted if start <= row < start + len(frame)):
            value = frame[column][row - start]
            text = value if isinstance(value, str) else " ".join(map(str, value))
            found[wanted[row]] = (Path(table.place(row)).name, text)
    return found
