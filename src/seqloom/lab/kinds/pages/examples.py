"""Examples for error pages: predicted values and translations of test rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch

from seqloom.lab.data.task import Task, Values
from seqloom.lab.kinds.columns import join_words
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.report.page import Chart, Curve, PageBlock, Table
from seqloom.lab.stats.metrics import Array

CHART_POINTS = 200
TRANSLATED_BATCHES, TRANSLATED_ROWS = 8, 10  # batches that are translated, rows that are shown


@torch.no_grad()
def predict_tags(model: ForTask, task: Task, batch: int) -> tuple[Array, Array]:
    """Return the true and the predicted tags of all test rows."""
    ys, ps = [], []
    for one in task.batches("test", batch=batch):
        assert one.y is not None
        keep = one.y >= 0
        ys.append(one.y[keep].numpy())
        ps.append(model.predict(one).values[keep].numpy())
    return np.concatenate(ys), np.concatenate(ps)


@torch.no_grad()
def chart_values(model: ForTask, task: Task, batch: int) -> PageBlock:
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
def translate_examples(model: ForTask, task: Task, batch: int, is_late: Callable[[], bool] = lambda: False) -> Table:
    """Show the source, reference, translation and BLEU of some test rows, both short and long."""
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
            text = coder.decode(source) if coder is not None else join_words(source)
            rows.append({"source": text, "reference": join_words(reference), "translation": join_words(translation)})
    bleu = corpus_bleu([row["translation"] for row in rows], [[row["reference"] for row in rows]], force=True)
    examples = rows[:: max(1, len(rows) // TRANSLATED_ROWS)][:TRANSLATED_ROWS]
    note = f"BLEU of {len(rows):,} test rows with greedy decoding: {bleu.score:.1f}."
    return Table("Example translations", examples, note)
