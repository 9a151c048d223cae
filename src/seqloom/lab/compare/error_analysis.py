"""Error analysis of the best model: confusions, errors along a forecast, its worst test rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from seqloom.core.plurals import count, shorten
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.task import PAD, Batch, Features, Task, Tokens
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.kind import ScoredRows
from seqloom.lab.kinds.pages.forecast_analysis import describe_window
from seqloom.lab.kinds.pages.series_pictures import draw_row, is_apart
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.report.page import Chart, Gallery, Grid, PageBlock, Table

WORST_ROWS = 10
DRAWN_ROWS = 6
TEXT_LENGTH = 200  # maximum characters of a text that is shown
Originals = Callable[[list[int]], dict[int, tuple[str, str]]]


def analyse_errors(
    model: ForTask,
    task: Task,
    columns: Columns,
    batch: int,
    is_late: Callable[[], bool] = lambda: False,
    out_of_fold: Columns | None = None,
    read: Originals = lambda _: {},
) -> list[PageBlock]:
    """Return report blocks about a model's test errors, the most informative first.

    Args:
        columns: the scores of the test rows.
        batch: examples per batch.
        is_late: whether to stop with the results so far; called between predictions that take long.
        out_of_fold: the scores of the test rows of all folds, for tables and curves of classes.
        read: returns where test rows stand and their original text, given their positions.
    """
    shared = columns if out_of_fold is None else out_of_fold
    blocks = kind_of(task).analyse_errors(ScoredRows(model, task, columns, batch, is_late, shared))
    if not is_late():
        blocks += _show_worst_rows(model, task, columns, batch, is_late, read)
    return blocks


@torch.no_grad()
def _show_worst_rows(
    model: ForTask, task: Task, columns: Columns, batch: int, is_late: Callable[[], bool], read: Originals
) -> list[PageBlock]:
    """List the test rows of largest loss, and draw those that are series."""
    worst = list(_find_worst_rows(model, task, columns, batch, is_late))
    originals = read([fields["row"] for fields, _ in worst if "row" in fields])  # windows have dates instead
    pictures: list[Chart | Grid] = []
    drawn: list[Batch] = []
    for fields, row in worst:
        if fields.get("row") in originals:
            place, text = originals[fields["row"]]
            fields |= {"row": place, "input": shorten(text, TEXT_LENGTH)}
        is_wanted = len(pictures) < DRAWN_ROWS and is_apart(task, row, drawn)
        if is_wanted and (picture := draw_row(model, task, row, fields)) is not None:
            pictures.append(picture)
            drawn.append(row)
    blocks: list[PageBlock] = [Gallery("Worst test rows, drawn", pictures)] if pictures else []
    return [*blocks, Table("Worst test rows", [fields for fields, _ in worst], "The rows of largest loss.")]


def _find_worst_rows(
    model: ForTask, task: Task, columns: Columns, batch: int, is_late: Callable[[], bool]
) -> Iterator[tuple[dict[str, Any], Batch]]:
    """Yield the fields and the input of the rows of largest loss."""
    losses = np.nan_to_num(columns["nats"] / np.maximum(columns["targets"], 1), nan=-1.0)
    worst = np.argsort(-losses, kind="stable")[:WORST_ROWS]
    ranks = {int(row): rank for rank, row in enumerate(worst)}
    rows: dict[int, tuple[dict[str, Any], Batch]] = {}
    start = 0
    for one in task.batches("test", batch=batch):
        for k in range(len(one)):
            if start + k in ranks and not (rows and is_late()):
                row, loss = one.shard(k, len(one)), round(float(losses[start + k]), 4)
                rows[ranks[start + k]] = (_describe_row(model, task, row) | {"loss": loss}, row)
        start += len(one)
    yield from (rows[rank] for rank in sorted(rows))


@torch.no_grad()
def _describe_row(model: ForTask, task: Task, row: Batch) -> dict[str, Any]:
    prediction = model.predict(row)
    fields = {"row": int(row.rows[0]), "input": _describe_input(task, row)}
    if isinstance(task, WindowsTask):
        return describe_window(model, task, row)
    assert row.y is not None
    lengths = row.y_lengths if row.y_lengths is not None else row.lengths
    true = "(not in training)" if bool((row.y < 0).all()) else _decode(task, row.y.clamp(min=PAD), lengths)
    return fields | {"true": true, "predicted": _decode(task, prediction.values, prediction.lengths)}


def _decode(task: Task, values: torch.Tensor, lengths: torch.Tensor | None) -> str:
    single = values.ndim < 3 and kind_of(task).is_per_row
    value = task.decode(values, None if single else lengths)[0]
    return shorten(kind_of(task).write_value(task, value), TEXT_LENGTH)


def _describe_input(task: Task, row: Batch) -> str:
    """Return the text of a row, or the length of its series."""
    coder = task.encoding.x if task.encoding is not None else None
    if isinstance(task.input, Tokens) and coder is not None:
        return shorten(str(coder.decode(row.x[0, : int(row.lengths[0])].tolist())), TEXT_LENGTH)
    features = f" of {count(task.input.size, 'feature')}" if isinstance(task.input, Features) else ""
    return f"{count(int(row.lengths[0]), 'step')}{features}"
