"""What the best model writes by itself, and BLEU of it."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

from seqloom.lab.data.task import Task
from seqloom.lab.report.page import Table
from seqloom.lab.training.for_task import ForTask

BATCHES, SHOWN = 8, 10


@torch.no_grad()
def translations(model: ForTask, task: Task, batch: int) -> Table:
    """Of some test rows, short and long ones: the source, what is right, what the model wrote."""
    from sacrebleu import corpus_bleu

    every = max(1, (task.count("test", batch=batch) or 1) // BATCHES)
    coder = getattr(getattr(task, "saved", None), "x", None)
    rows: list[dict[str, Any]] = []
    for one in islice(task.batches("test", batch=batch), every // 2, None, every):
        assert one.y is not None and one.y_lengths is not None
        said = model.predict(one)
        sources = [row[:n] for row, n in zip(one.x.tolist(), one.lengths.tolist(), strict=True)]
        right, wrote = task.decode(one.y, one.y_lengths - 1), task.decode(said.values, said.lengths)
        for source, true, written in zip(sources, right, wrote, strict=True):
            shown = coder.decode(source) if coder is not None else _text(source)
            rows.append({"source": shown, "right": _text(true), "written": _text(written)})
    bleu = corpus_bleu([row["written"] for row in rows], [[row["right"] for row in rows]])
    some = rows[:: max(1, len(rows) // SHOWN)][:SHOWN]
    return Table("What the best model writes", some, f"BLEU of {len(rows):,} test rows, greedily: {bleu.score:.1f}.")


def _text(decoded: Any) -> str:
    return decoded if isinstance(decoded, str) else " ".join(map(str, decoded))
