"""A task whose examples are rows: texts, token lists, series or recordings with their targets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.lab.data.pipeline.batch_order import order
from seqloom.lab.data.pipeline.ragged import Ragged
from seqloom.lab.data.pipeline.saved import Saved
from seqloom.lab.data.task import IGNORE, PAD, START, Batch, Split, Task

Array = np.ndarray[Any, Any]


class RowsTask(Task):
    """Encoded rows on disk, or, after `load_task`, the encoding alone."""

    def __init__(self, saved: Saved, data: Path | None = None) -> None:
        self.saved = saved
        self.group = saved.plan.group if saved.plan.layout == "long" else None  # whose rows are one example
        target = saved.x.space if saved.y is None else saved.y.space
        splits = {name: Split(**facts) for name, facts in saved.splits.items()} if data else {}
        super().__init__(saved.name, saved.plan.kind, saved.x.space, target, splits, saved.notes, saved.table)
        if data:
            self._x = Ragged.open(data, "x")
            self._y = Ragged.open(data, "y") if saved.y else None
            self._spans = Ragged.open(data, "times") if saved.times else None
            self._index = {name: np.load(data / f"split.{i}.npy") for i, name in enumerate(splits)}

    def batches(
        self,
        split: str,
        *,
        batch: int | None = None,
        tokens: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        skip: int = 0,
    ) -> Iterator[Batch]:
        for positions in self._order(split, batch, tokens, seed, epoch)[skip:]:
            yield self._batch(split, positions)

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        return len(self._order(split, batch, tokens, seed, epoch))

    def _order(self, split: str, batch: int | None, tokens: int | None, seed: int, epoch: int) -> list[Array]:
        self.check(split, batch, tokens)
        rows = self._index[split]
        lengths = self._x.lengths[rows]
        if self.kind == "translate" and self._y is not None:
            lengths = np.maximum(lengths, self._y.lengths[rows])
        return order(lengths, batch, tokens, (seed, epoch) if split == "train" else None)

    def _batch(self, split: str, positions: Array) -> Batch:
        rows = self._index[split][positions]
        x, lengths = self._x.padded(rows)
        y = y_lengths = spans = None
        if self.kind == "generate":  # START a b c -> a b c END
            y, _ = self._x.padded(rows, IGNORE)
            x = np.concatenate([np.full_like(x[:, :1], START), x[:, :-1]], 1)
            x[np.arange(x.shape[1]) >= lengths[:, None]] = PAD
        elif self._y is not None and self.kind in ("classify", "regress"):
            y = self._y.values[rows]
        elif self._y is not None:
            y, y_lengths = self._y.padded(rows, IGNORE if self.kind == "tag" else PAD)
        if self._spans is not None:
            spans = torch.from_numpy(self._spans.padded(rows)[0])
        return Batch(
            _tensor(x),
            torch.from_numpy(lengths),
            torch.from_numpy(positions),
            None if y is None else _tensor(y),
            None if y_lengths is None or self.kind == "tag" else torch.from_numpy(y_lengths),
            spans,
        )

    def encode(self, rows: Sequence[Any]) -> Batch:
        from seqloom.lab.data.pipeline.python_rows import frame_of

        frame = frame_of(rows, self.saved.x, self.saved.times)
        values, lengths = self.saved.x.encode(frame)
        data = Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))
        every = np.arange(len(rows))
        if (data.lengths > (limit := self.saved.options.limit)).any():  # one text, so that it is said once
            warnings.warn(
                f"an input has more than {limit} steps; the first {limit} are read, as in training", stacklevel=2
            )
        data.lengths = np.minimum(data.lengths, limit)
        if self.kind == "generate":  # the end is for the model to say
            data.lengths = np.maximum(data.lengths - 1, 0)
        x, lengths = data.padded(every)
        spans = None
        if self.saved.times is not None and self.saved.times.column in frame.columns:
            dt, counts = self.saved.times.encode(frame)
            spans = torch.from_numpy(Ragged(dt, np.concatenate([[0], np.cumsum(counts)])).padded(every)[0])
            spans = spans[:, : x.shape[1]]
        return Batch(_tensor(x), torch.from_numpy(lengths), torch.from_numpy(every), timespans=spans)

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        coder = self.saved.y or self.saved.x
        found = predictions.detach().cpu().tolist()
        if lengths is not None:
            ends = torch.as_tensor(lengths).tolist()
            found = [row[:end] for row, end in zip(found, ends, strict=True)]
        return [coder.decode(row) for row in found]

    def save(self, folder: Path | str) -> None:
        self.saved.save(folder)

    def over(self, path: Any) -> Task:
        from seqloom.lab.data.pipeline.build import rows_over

        return rows_over(path, self.saved)

    def read(self, path: Any, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        from seqloom.lab.data.pipeline.python_rows import rows_of

        return rows_of(path, self.saved, chunk)


def _tensor(array: Array) -> Tensor:
    """Ids as long, values as float32; never the memory of the file itself."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor.long()
