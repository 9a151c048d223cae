"""A task whose examples are rows: texts, token lists, series or recordings with their targets; their original text."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.build import build_other_rows
from seqloom.lab.data.pipeline.encoding import Encoding, FileTask
from seqloom.lab.data.pipeline.new_rows import make_attributes_frame, make_frame
from seqloom.lab.data.pipeline.ragged import Ragged
from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.pipeline.row_filter import sample_rows
from seqloom.lab.data.pipeline.source import Source, read_source
from seqloom.lab.data.task import IGNORE, PAD, START, Batch, Features, Notes, Pass, Task, Tokens, list_rows
from seqloom.lab.kinds.forms import FORMS

Array = np.ndarray[Any, Any]
POOL = 50  # number of batches whose examples are sorted by length together


class RowsTask(FileTask):
    """Encoded rows on disk, or only their encoding after `load_task`."""

    def __init__(self, encoding: Encoding, data: Path | None = None) -> None:
        plan, space = encoding.plan, encoding.x.space
        target = space if encoding.y is None else encoding.y.space
        if encoding.letters is not None:
            space = replace(space, alphabet=encoding.letters.size)
        if encoding.attributes is not None:
            space = replace(space, attributes=encoding.attributes.names)
        super().__init__(encoding, space, target, data)
        self.group = plan.group if plan.layout == "long" else None  # column whose rows form one example
        self.form = FORMS[self.kind]
        if data:
            self._data = {name: Ragged.open(data, name) for name in encoding.coders}
            self._index = {name: np.load(data / f"split.{i}.npy") for i, name in enumerate(self.splits)}

    def iterate(self, one: Pass, skip: int) -> Iterator[Batch]:
        for positions in self._order(one)[skip:]:
            yield self._batch(one.split, positions)

    def count_batches(self, one: Pass) -> int | None:
        return len(self._order(one))

    def _order(self, one: Pass) -> list[Array]:
        rows = self._index[one.split]
        lengths = self._data["x"].lengths[rows]
        if self.form.is_translated and "y" in self._data:
            lengths = np.maximum(lengths, self._data["y"].lengths[rows])
        return order_batches(lengths, one.batch, one.tokens, (one.seed, one.epoch) if one.split == "train" else None)

    def _batch(self, split: str, positions: Array) -> Batch:
        rows = self._index[split][positions]
        batch, y = _gather(self._data, rows, positions), self._data.get("y")
        if self.form.target == "next":  # START a b c -> a b c END
            x = torch.cat([torch.full_like(batch.x[:, :1], START), batch.x[:, :-1]], 1)
            x[torch.arange(x.shape[1]) >= batch.lengths.unsqueeze(1)] = PAD
            return replace(batch, x=x, y=_to_tensor(self._data["x"].pad(rows, IGNORE)[0]))
        if y is None:
            return batch
        if self.target.per_step:
            return replace(batch, y=_to_tensor(y.pad(rows, IGNORE)[0]))
        if self.form.is_per_row:
            return replace(batch, y=_to_tensor(y.values[rows]))
        values, lengths = y.pad(rows, PAD)
        return replace(batch, y=_to_tensor(values), y_lengths=torch.from_numpy(lengths))

    def read_classes(self, split: str) -> Array:
        if self.form.target != "class":
            return np.empty(0, dtype=np.int64)
        return np.asarray(self._data["y"].values[self._index[split]], dtype=np.int64)

    def encode(self, rows: Sequence[Any]) -> Batch:
        encoding, limit = self.encoding, self.encoding.options.limit
        frame = make_frame(rows, encoding.x, encoding.times)
        x = Ragged.from_lengths(*encoding.x.encode(frame))
        if (x.lengths > limit).any():  # one text, so that Python shows it once
            warnings.warn(
                f"an input has more than {limit} steps; the first {limit} are read, as in training", stacklevel=2
            )
        x.lengths = np.minimum(x.lengths, limit)
        if self.form.target == "next":  # without END, which the model predicts
            x.lengths = np.maximum(x.lengths - 1, 0)
        data = {"x": x}
        if encoding.times is not None and encoding.times.column in frame.columns:
            data["times"] = Ragged.from_lengths(*encoding.times.encode(frame))
            stamps = data["times"].lengths
            differ = np.minimum(stamps, limit) != x.lengths
            if isinstance(self.input, Features) and differ.any():
                row = int(differ.argmax())
                raise UserError(
                    f"row {row + 1}: {count(int(stamps[row]), 'time stamp')} in {encoding.times.column!r} for "
                    f"{count(int(x.lengths[row]), 'step')}; give one for each step"
                )
        if encoding.letters is not None:
            data["letters"] = Ragged.from_lengths(*encoding.letters.encode(frame))
        if (coder := encoding.attributes) is not None:
            data["attributes"] = Ragged.from_lengths(*coder.encode(make_attributes_frame(rows, coder)))
        every = np.arange(len(rows))
        return _gather(data, every, every)

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        coder = self.encoding.y or self.encoding.x
        return [coder.decode(row) for row in list_rows(predictions, lengths)]

    def source_rows(self, split: str, positions: Sequence[int]) -> list[int]:
        """Return the indices of rows in the source, given their positions in a split."""
        numbers: list[int] = self._index[split][list(positions)].tolist()
        return numbers

    def build_other(self, source: Source, encoding: Encoding, work: Path) -> None:
        build_other_rows(source, encoding, work)


def _gather(data: Mapping[str, Ragged], rows: Array, positions: Array) -> Batch:
    """Return the inputs of some rows."""
    x, lengths = data["x"].pad(rows)
    spans, letters = (
        data[name].pad(rows)[0][:, : x.shape[1]] if name in data else None for name in ("times", "letters")
    )
    return Batch(
        _to_tensor(x),
        torch.from_numpy(lengths),
        torch.from_numpy(positions),
        timespans=None if spans is None else _to_tensor(spans),
        letters=None if letters is None else _cut_letters(letters),
        attributes=_to_tensor(data["attributes"].values[rows]) if "attributes" in data else None,
    )


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


def read_original(
    source: Mapping[str, Any], task: Task, split: str, positions: Sequence[int]
) -> dict[int, tuple[str, str]]:
    """Return the locations of some rows and their input as text.

    Args:
        source: {"data": ..., "options": {...}}, as returned by `open_data`.
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
