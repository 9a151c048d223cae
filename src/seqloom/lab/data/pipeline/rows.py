"""A task whose examples are rows: texts, token lists, series or recordings with their targets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.build import build_other_rows
from seqloom.lab.data.pipeline.encoding import Encoding
from seqloom.lab.data.pipeline.ragged import Ragged
from seqloom.lab.data.task import IGNORE, PAD, START, Batch, DataSource, Features, Task, read_record
from seqloom.lab.kinds.forms import FORMS, Form

Array = np.ndarray[Any, Any]
POOL = 50  # number of batches whose examples are sorted by length together


class RowsTask(Task):
    """Encoded rows on disk, or only their encoding after `load_task`."""

    encoding: Encoding

    def __init__(self, encoding: Encoding, data: Path | None = None) -> None:
        self.encoding = encoding
        plan = encoding.plan
        self.group = plan.group if plan.layout == "long" else None  # column whose rows form one example
        target = encoding.x.space if encoding.y is None else encoding.y.space
        splits = encoding.splits if data else {}
        space = encoding.x.space
        if encoding.letters is not None:
            space = replace(space, alphabet=encoding.letters.size)
        if encoding.attributes is not None:
            space = replace(space, attributes=encoding.attributes.names)
        super().__init__(encoding.name, plan.kind, space, target, splits, encoding.notes, encoding.columns)
        if data:
            self._x = Ragged.open(data, "x")
            self._y = Ragged.open(data, "y") if encoding.y else None
            self._spans = Ragged.open(data, "times") if encoding.times else None
            self._letters = Ragged.open(data, "letters") if encoding.letters else None
            self._attributes = Ragged.open(data, "attributes") if encoding.attributes else None
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

    @property
    def form(self) -> Form:
        """Hints about the kind of task."""
        return FORMS[self.kind]

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        return len(self._order(split, batch, tokens, seed, epoch))

    def _order(self, split: str, batch: int | None, tokens: int | None, seed: int, epoch: int) -> list[Array]:
        self.check(split, batch, tokens)
        rows = self._index[split]
        lengths = self._x.lengths[rows]
        if self.form.is_translated and self._y is not None:
            lengths = np.maximum(lengths, self._y.lengths[rows])
        return order_batches(lengths, batch, tokens, (seed, epoch) if split == "train" else None)

    def _batch(self, split: str, positions: Array) -> Batch:
        rows = self._index[split][positions]
        x, lengths = self._x.pad(rows)
        y = y_lengths = spans = None
        if self.form.target == "next":  # START a b c -> a b c END
            y, _ = self._x.pad(rows, IGNORE)
            x = np.concatenate([np.full_like(x[:, :1], START), x[:, :-1]], 1)
            x[np.arange(x.shape[1]) >= lengths[:, None]] = PAD
        elif self._y is not None and self.target.per_step:
            y, _ = self._y.pad(rows, IGNORE)
        elif self._y is not None and self.form.is_per_row:
            y = self._y.values[rows]
        elif self._y is not None:
            y, y_lengths = self._y.pad(rows, PAD)
        if self._spans is not None:
            spans = torch.from_numpy(self._spans.pad(rows)[0])
        letters = None if self._letters is None else _cut_letters(self._letters.pad(rows)[0])
        return Batch(
            _to_tensor(x),
            torch.from_numpy(lengths),
            torch.from_numpy(positions),
            None if y is None else _to_tensor(y),
            None if y_lengths is None else torch.from_numpy(y_lengths),
            spans,
            letters,
            attributes=None if self._attributes is None else _to_tensor(self._attributes.values[rows]),
        )

    def read_classes(self, split: str) -> Array:
        if self._y is None or self.form.target != "class":
            return np.empty(0, dtype=np.int64)
        return np.asarray(self._y.values[self._index[split]], dtype=np.int64)

    def encode(self, rows: Sequence[Any]) -> Batch:
        from seqloom.lab.data.pipeline.new_rows import make_attributes_frame, make_frame

        times = self.encoding.times
        frame = make_frame(rows, self.encoding.x, times)
        data = Ragged.from_lengths(*self.encoding.x.encode(frame))
        every = np.arange(len(rows))
        if (data.lengths > (limit := self.encoding.options.limit)).any():  # one text, so that Python shows it once
            warnings.warn(
                f"an input has more than {limit} steps; the first {limit} are read, as in training", stacklevel=2
            )
        data.lengths = np.minimum(data.lengths, limit)
        if self.form.target == "next":  # without END, which the model predicts
            data.lengths = np.maximum(data.lengths - 1, 0)
        x, lengths = data.pad(every)
        spans = None
        if times is not None and times.column in frame.columns:
            intervals = Ragged.from_lengths(*times.encode(frame))
            differ = np.minimum(intervals.lengths, limit) != data.lengths
            if isinstance(self.input, Features) and differ.any():
                row = int(differ.argmax())
                raise UserError(
                    f"row {row + 1}: {count(int(intervals.lengths[row]), 'time stamp')} in {times.column!r} for "
                    f"{count(int(data.lengths[row]), 'step')}; give one for each step"
                )
            spans = torch.from_numpy(intervals.pad(every)[0])[:, : x.shape[1]]
        letters = None
        if self.encoding.letters is not None:
            spelled = Ragged.from_lengths(*self.encoding.letters.encode(frame))
            letters = _cut_letters(spelled.pad(every)[0][:, : x.shape[1]])
        attributes = None
        if (coder := self.encoding.attributes) is not None:
            attributes = _to_tensor(coder.encode(make_attributes_frame(rows, coder))[0])
        return Batch(
            _to_tensor(x),
            torch.from_numpy(lengths),
            torch.from_numpy(every),
            timespans=spans,
            letters=letters,
            attributes=attributes,
        )

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        coder = self.encoding.y or self.encoding.x
        rows = predictions.detach().cpu().tolist()
        if lengths is not None:
            rows = [row[:end] for row, end in zip(rows, torch.as_tensor(lengths).tolist(), strict=True)]
        return [coder.decode(row) for row in rows]

    def save(self, folder: Path | str) -> None:
        self.encoding.save(folder)

    def source_rows(self, split: str, positions: Sequence[int]) -> list[int]:
        """Return the indices of rows in the source, given their positions in a split."""
        numbers: list[int] = self._index[split][list(positions)].tolist()
        return numbers

    def open_file(self, path: DataSource) -> Task:
        place = build_other_rows(path, self.encoding)
        return RowsTask(Encoding.load(read_record(place)), place)

    def read_rows(self, path: DataSource, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        from seqloom.lab.data.pipeline.new_rows import read_file_rows

        return read_file_rows(path, self.encoding, chunk)


def _cut_letters(letters: Array) -> Tensor:
    """Return letters (B, T, C) without the columns past the longest word, but with at least one."""
    used = np.flatnonzero(letters.any((0, 1)))
    return _to_tensor(letters[..., : int(used[-1]) + 1 if len(used) else 1])


def _to_tensor(array: Array) -> Tensor:
    """Convert ids to int64 and values to float32."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor.long()


def order_batches(lengths: Array, batch: int | None, tokens: int | None, seed: tuple[int, int] | None) -> list[Array]:
    """Group examples of similar length into batches.

    Args:
        lengths: (N,) steps of each example.
        batch: Examples per batch, or None.
        tokens: Maximum number of steps per batch, including padding, if `batch` is None.
        seed: Seed and epoch of the random order; None orders examples from the shortest to the longest.

    Returns:
        Positions in `lengths` for each batch.
    """
    n = len(lengths)
    if seed is None:
        return _cut_batches(np.argsort(lengths, kind="stable"), lengths, batch, tokens)
    random = np.random.default_rng([s % (1 << 32) for s in seed])
    order = random.permutation(n)
    size = batch or max(1, int((tokens or 1) / max(1.0, float(lengths.mean()) if n else 1.0)))
    pool = np.arange(n) // (POOL * size)
    order = order[np.lexsort((lengths[order], pool))]
    batches = _cut_batches(order, lengths, batch, tokens)
    return [batches[i] for i in random.permutation(len(batches))]


def _cut_batches(order: Array, lengths: Array, batch: int | None, tokens: int | None) -> list[Array]:
    if batch is not None:
        return [order[i : i + batch] for i in range(0, len(order), batch)]
    cuts, start, longest = [0], 0, 0
    for i, length in enumerate(lengths[order].tolist()):
        longest = max(longest, length)
        if i > start and longest * (i - start + 1) > (tokens or 1):
            cuts.append(i)
            start, longest = i, length
    return [order[a:b] for a, b in zip(cuts, [*cuts[1:], len(order)], strict=True) if b > a]
