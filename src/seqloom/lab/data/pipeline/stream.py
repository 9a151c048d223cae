"""Language modelling of one long text, read chunk by chunk in several parallel lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.encoding import Encoding, FileTask, make_text_coder
from seqloom.lab.data.pipeline.new_rows import make_frame
from seqloom.lab.data.pipeline.ragged import Ragged, RaggedWriter
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import IGNORE, PAD, Batch, Pass, Split, list_rows

Array = np.ndarray[Any, Any]
SHARES = {"train": 0.9, "valid": 0.05, "test": 0.05}


class StreamTask(FileTask):
    """One long text, cut into `batch` lanes of equal length; each batch is the next piece of every lane.

    A piece has `lookback` steps. In training the first piece of an epoch is shorter by a random amount, so that
    pieces start at different places in every epoch. The size of a split is its number of steps.
    """

    def __init__(self, encoding: Encoding, data: Path | None = None) -> None:
        super().__init__(encoding, encoding.x.space, encoding.x.space, data)
        self.lookback = self.steps = encoding.options.lookback
        if data:
            self._parts = {name: Ragged.open(data, f"ids.{i}") for i, name in enumerate(self.splits)}
            self._ids = {name: part.values for name, part in self._parts.items()}

    def iterate(self, one: Pass, skip: int) -> Iterator[Batch]:
        starts, ends, edges = self._cut_lanes(one)
        ids = self._ids[one.split]
        for number in range(skip, len(edges) - 1):
            a, b = np.minimum(starts + edges[number], ends), np.minimum(starts + edges[number + 1], ends)
            at = a[:, None] + np.arange(int((b - a).max()))  # (lanes, T) positions in the text
            real = at < b[:, None]
            at = np.where(real, at, 0)
            x, y = np.where(real, ids[at], PAD), np.where(real, ids[at + 1], IGNORE)
            rows = torch.from_numpy(number * len(starts) + np.arange(len(starts)))
            tensors = [torch.from_numpy(v).long() for v in (x, b - a, y)]
            self._parts[one.split].release(len(starts))
            yield Batch(tensors[0], tensors[1], rows, tensors[2], carry=number > 0)

    def count_batches(self, one: Pass) -> int | None:
        return len(self._cut_lanes(one)[2]) - 1

    def _cut_lanes(self, one: Pass) -> tuple[Array, Array, list[int]]:
        """Return the start and end of each lane in the text, and the edges of the pieces within a lane."""
        n = len(self._ids[one.split]) - 1
        length = -(-n // min(self.choose_batch_size(one), n))
        starts = np.arange(0, n, length)
        first = self.lookback
        if one.split == "train":
            first -= int(np.random.default_rng([one.seed, one.epoch]).integers(self.lookback))
        return starts, np.minimum(starts + length, n), [0, *range(min(first, length), length, self.lookback), length]

    def encode(self, rows: Sequence[Any]) -> Batch:
        """Encode the beginnings of texts to be continued."""
        values, lengths = self.encoding.x.encode(make_frame(rows, self.encoding.x))
        x, _ = Ragged.from_lengths(values, lengths).pad(np.arange(len(rows)))
        return Batch(torch.from_numpy(x).long(), torch.from_numpy(lengths), torch.arange(len(rows)))

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        return [self.encoding.x.decode(row) for row in list_rows(predictions, lengths)]

    def build_other(self, source: Source, encoding: Encoding, work: Path) -> None:
        _write(source, encoding, {"test": np.ones(source.rows, dtype=bool)}, work)


def build_stream(source: Source, encoding: Encoding, work: Path) -> None:
    """Fit the vocabulary on the training part of a text, then write all parts."""
    encoding.x = make_text_coder(source, "text", encoding, end=False)
    masks = _split_text(source, encoding)
    encoding.x.fit(f.filter(masks["train"][start : start + len(f)]) for start, f in source.chunks(["text"]))
    _write(source, encoding, masks, work)


def _split_text(source: Source, encoding: Encoding) -> dict[str, Array]:
    """Return split -> (rows,) bool: by the splits of the files, else train first and test last."""
    split_of = np.concatenate([np.full(p.rows, p.split or "", dtype=object) for p in source.parts])
    if set(split_of.tolist()) != {""}:
        return {name: split_of == name for name in dict.fromkeys(split_of.tolist())}
    lengths = [frame["text"].str.len_bytes().to_numpy() for _, frame in source.chunks(["text"])]
    position = np.cumsum(np.concatenate(lengths), dtype=np.float64)
    position /= position[-1]
    edges = np.cumsum([0.0, *SHARES.values()])
    encoding.notes.say("split by position: " + ", ".join(f"{share:.0%} {name}" for name, share in SHARES.items()))
    sides = zip(SHARES, edges[:-1], edges[1:], strict=True)
    return {name: (position > a) & (position <= b + 1e-9) for name, a, b in sides}


def _write(source: Source, encoding: Encoding, masks: dict[str, Array], work: Path) -> None:
    """Write the ids of each split to a file and record the splits."""
    writers = [RaggedWriter(work, f"ids.{i}") for i in range(len(masks))]
    sizes = [0] * len(masks)
    for start, frame in source.chunks(["text"]):
        for number, mask in enumerate(masks.values()):
            ids, _ = encoding.x.encode(frame.filter(mask[start : start + len(frame)]))
            writers[number].add(ids, np.array([len(ids)]))
            sizes[number] += len(ids)
    for name, size, mask, writer in zip(masks, sizes, masks.values(), writers, strict=True):
        writer.close()
        if size < 2:
            raise UserError(f"{source.parts[0].label}: {name} would have {count(size, 'step')}; give a longer text")
        encoding.splits[name] = Split(size - 1, cache.digest(source.fingerprint, np.packbits(mask).tobytes()))
