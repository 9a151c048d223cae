"""Texts into texts, by beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from seqloom.core.errors import UserError
from seqloom.lab.training.predict import encode_rows, split_by_length
from seqloom.lab.training.run import Run
from seqloom.models.decoding.beam import Beam


def translate(run: Run, pieces: Iterable[list[Any]], beam: Beam = Beam(), place: str = "") -> Iterator[dict[str, Any]]:
    """{"source", "translation", "score"} of each row, in order; an empty one is an empty text."""
    if run.task.kind != "translate":
        raise UserError(f"{run.folder} was trained to {run.task.kind}, not to translate; use `seqloom predict`")
    model, task, done = run.model(), run.task, 0
    column = task.saved.plan.input[0] if hasattr(task, "saved") else ""
    for rows in pieces:
        batch = encode_rows(task, rows, place, done)
        said: list[tuple[Any, float | None]] = [("", None)] * len(rows)
        with torch.no_grad():
            for part, at in split_by_length(batch):
                found = model.model.translate(part.x, part.lengths, beam)
                texts = task.decode(found.tokens[:, 0], found.lengths[:, 0])
                for row, text, score in zip(at, texts, found.scores[:, 0].tolist(), strict=True):
                    said[row] = text, score
        for row, (text, score) in zip(rows, said, strict=True):
            source = row.get(column) if isinstance(row, dict) else row
            yield {"source": source, "translation": text, "score": score}
        done += len(rows)
