"""Error analysis of the best model: confusions, errors along a forecast, its worst test rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from seqloom.core.plurals import count
from seqloom.lab.compare.class_analysis import analyse_classes, draw_confusions, tabulate_classes, tabulate_labels
from seqloom.lab.compare.forecast_analysis import analyse_forecasts, describe_window
from seqloom.lab.compare.row_scores import Columns
from seqloom.lab.compare.series_pictures import draw_classes, draw_row, is_apart
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.task import PAD, Batch, Classes, Features, Labels, Tags, Task, Tokens, Values
from seqloom.lab.kinds.decision import Decision
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.report.page import Chart, Curve, Gallery, Grid, PageBlock, Table
from seqloom.lab.stats.metrics import Array

WORST_ROWS = 10
DRAWN_ROWS = 6
TEXT_LENGTH = 200  # characters of a text that are shown
CHART_POINTS = 200
Originals = Callable[[list[int]], dict[int, tuple[str, str]]]
TRANSLATED_BATCHES, TRANSLATED_ROWS = 8, 10  # batches that are translated, rows that are shown


def analyse_errors(
    model: ForTask,
    task: Task,
    columns: Columns,
    batch: int,
    is_late: Callable[[], bool] = lambda: False,
    out_of_fold: Columns | None = None,
    read: Originals = lambda _: {},
) -> list[PageBlock]:
    """Return report blocks on a model's test errors, the most informative first.

    Args:
        model: the model.
        task: the task.
        columns: the scores of the test rows.
        batch: examples per batch.
        is_late: whether to stop with what there is; asked between predictions that take long.
        out_of_fold: the scores of the test rows of all folds, for tables and curves of classes.
        read: returns where test rows stand and their original text, given their positions.
    """
    blocks: list[PageBlock] = []
    if isinstance(task.target, Classes):
        decision = model.decision or Decision()
        blocks += analyse_classes(task.target.names, columns if out_of_fold is None else out_of_fold, decision)
        if (gallery := draw_classes(task, batch)) is not None:
            blocks.append(gallery)
    elif isinstance(task.target, Labels):
        blocks.append(tabulate_labels(task.target.names, columns if out_of_fold is None else out_of_fold))
    elif task.kind == "tag" and isinstance(task.target, Tags):
        y, p = _predict_tags(model, task, batch)
        blocks += [tabulate_classes(task.target.names, y, p), draw_confusions(task.target.names, y, p)]
    elif task.kind == "forecast":
        blocks += analyse_forecasts(model, task, columns, batch)
    elif task.kind == "regress":
        blocks.append(_predicted_values(model, task, batch))
    elif task.kind == "translate":
        blocks.append(translate_examples(model, task, batch, is_late))
    if not is_late():
        blocks += _show_worst_rows(model, task, columns, batch, is_late, read)
    return blocks


@torch.no_grad()
def _predict_tags(model: ForTask, task: Task, batch: int) -> tuple[Array, Array]:
    """Return the true and the predicted tags of all test rows."""
    ys, ps = [], []
    for one in task.batches("test", batch=batch):
        assert one.y is not None
        keep = one.y >= 0
        ys.append(one.y[keep].numpy())
        ps.append(model.predict(one).values[keep].numpy())
    return np.concatenate(ys), np.concatenate(ps)


@torch.no_grad()
def _predicted_values(model: ForTask, task: Task, batch: int) -> PageBlock:
    """Chart true values in ascending order, with the predictions."""
    assert isinstance(task.target, Values)
    true, predicted = [], []
    for one in task.batches("test", batch=batch):
        assert one.y is not None
        true += [row[0] for row in task.decode(one.y)]
        predicted += [row[0] for row in task.decode(model.predict(one).values)]
    order = np.argsort(np.array(true))
    points = order[np.linspace(0, len(order) - 1, min(CHART_POINTS, len(order))).astype(int)]
    x = [float(i) for i in range(len(points))]
    curves = [
        Curve("true", x, [float(true[i]) for i in points]),
        Curve("predicted", x, [float(predicted[i]) for i in points]),
    ]
    return Chart("True and predicted values", "test rows, sorted by true value", task.target.names[0], curves)


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
            fields |= {"row": place, "input": _shorten(text)}
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
    single = values.ndim < 3 and task.kind in ("classify", "multilabel", "regress")
    value = task.decode(values, None if single else lengths)[0]
    if isinstance(task.target, Labels):  # whose names may contain blanks
        steps = value if task.target.per_step else [value]
        return _shorten(" | ".join(", ".join(labels) or "-" for labels in steps))
    return _shorten(" ".join(map(str, value)) if isinstance(value, list) else str(value))


def _describe_input(task: Task, row: Batch) -> str:
    """Return the text of a row, or the length of its series."""
    coder = task.encoding.x if task.encoding is not None else None
    if isinstance(task.input, Tokens) and coder is not None:
        return _shorten(str(coder.decode(row.x[0, : int(row.lengths[0])].tolist())))
    features = f" of {count(task.input.size, 'feature')}" if isinstance(task.input, Features) else ""
    return f"{count(int(row.lengths[0]), 'step')}{features}"


def _shorten(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH else text[: TEXT_LENGTH - 3] + "..."


@torch.no_grad()
def translate_examples(model: ForTask, task: Task, batch: int, is_late: Callable[[], bool] = lambda: False) -> Table:
    """Show source, reference and translation of some test rows, short and long ones, with their BLEU."""
    from sacrebleu import corpus_bleu

    every = max(1, (task.count("test", batch=batch) or 1) // TRANSLATED_BATCHES)
    coder = task.encoding.x if task.encoding is not None else None
    rows: list[dict[str, Any]] = []
    for one in islice(task.batches("test", batch=batch), every // 2, None, every):
        assert one.y is not None and one.y_lengths is not None
        if rows and is_late():
            break
        prediction = model.predict(one)
        sources = [row[:n] for row, n in zip(one.x.tolist(), one.lengths.tolist(), strict=True)]
        references = task.decode(one.y, one.y_lengths - 1)
        translations = task.decode(prediction.values, prediction.lengths)
        for source, reference, translation in zip(sources, references, translations, strict=True):
            text = coder.decode(source) if coder is not None else _join(source)
            rows.append({"source": text, "reference": _join(reference), "translation": _join(translation)})
    bleu = corpus_bleu([row["translation"] for row in rows], [[row["reference"] for row in rows]], force=True)
    examples = rows[:: max(1, len(rows) // TRANSLATED_ROWS)][:TRANSLATED_ROWS]
    note = f"BLEU of {len(rows):,} test rows with greedy decoding: {bleu.score:.1f}."
    return Table("Example translations", examples, note)


def _join(decoded: str | Iterable[object]) -> str:
    return decoded if isinstance(decoded, str) else " ".join(map(str, decoded))
