"""Language modelling of one long text, read in pieces by several lanes at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.python_rows import frame_of
from seqloom.lab.data.pipeline.ragged import Ragged, Writer
from seqloom.lab.data.pipeline.saved import Saved, read_record
from seqloom.lab.data.pipeline.source import Source, source
from seqloom.lab.data.task import IGNORE, PAD, Batch, Split, Task

Array = np.ndarray[Any, Any]
SHARES = {"train": 0.9, "valid": 0.05, "test": 0.05}


class StreamTask(Task):
    """The text is cut into `batch` lanes of equal length; each batch is the next piece of every lane.

    A piece is `lookback` steps. In training the first piece of an epoch is shorter by a random
    amount, so that pieces start elsewhere every time. A split's size is its steps.
    """

    def __init__(self, saved: Saved, data: Path | None = None) -> None:
        self.saved, self.lookback = saved, saved.options.lookback
        splits = {name: Split(**facts) for name, facts in saved.splits.items()} if data else {}
        super().__init__(saved.name, "generate", saved.x.space, saved.x.space, splits, saved.notes, saved.table)
        if data:
            self._parts = {name: Ragged.open(data, f"ids.{i}") for i, name in enumerate(splits)}
            self._ids = {name: part.values for name, part in self._parts.items()}

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
        starts, ends, edges = self._lanes(split, batch, tokens, seed, epoch)
        ids = self._ids[split]
        for number in range(skip, len(edges) - 1):
            a, b = np.minimum(starts + edges[number], ends), np.minimum(starts + edges[number + 1], ends)
            at = a[:, None] + np.arange(int((b - a).max()))  # (lanes, T) places in the text
            real = at < b[:, None]
            at = np.where(real, at, 0)
            x, y = np.where(real, ids[at], PAD), np.where(real, ids[at + 1], IGNORE)
            rows = torch.from_numpy(number * len(starts) + np.arange(len(starts)))
            tensors = [torch.from_numpy(v).long() for v in (x, b - a, y)]
            self._parts[split].touched(len(starts))
            yield Batch(tensors[0], tensors[1], rows, tensors[2], carry=number > 0)

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        return len(self._lanes(split, batch, tokens, seed, epoch)[2]) - 1

    def _lanes(
        self, split: str, batch: int | None, tokens: int | None, seed: int, epoch: int
    ) -> tuple[Array, Array, list[int]]:
        """Where each lane starts and ends in the text, and where the pieces of a lane are cut."""
        self.check(split, batch, tokens)
        n = len(self._ids[split]) - 1
        lanes = min(batch or max(1, (tokens or 1) // self.lookback), n)
        length = -(-n // lanes)
        starts = np.arange(0, n, length)
        first = self.lookback
        if split == "train":
            first -= int(np.random.default_rng([seed, epoch]).integers(self.lookback))
        return starts, np.minimum(starts + length, n), [0, *range(min(first, length), length, self.lookback), length]

    def encode(self, rows: Sequence[Any]) -> Batch:
        """Beginnings of texts, to be continued."""
        values, lengths = self.saved.x.encode(frame_of(rows, self.saved.x))
        x, _ = Ragged(values, np.concatenate([[0], np.cumsum(lengths)])).padded(np.arange(len(rows)))
        return Batch(torch.from_numpy(x).long(), torch.from_numpy(lengths), torch.arange(len(rows)))

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        ends = [None] * len(predictions) if lengths is None else torch.as_tensor(lengths).tolist()
        return [self.saved.x.decode(row[:e]) for row, e in zip(predictions.cpu().tolist(), ends, strict=True)]

    def save(self, folder: Path | str) -> None:
        self.saved.save(folder)

    def over(self, path: Any) -> Task:
        found = source(path, self.saved.options, self.notes)
        key = cache.digest(found.fingerprint, repr(self.saved.x.state()), "over")

        def build(work: Path) -> None:
            fresh = Saved(found.name, self.saved.plan, self.saved.options, self.saved.x, table=self.saved.table)
            _write(found, fresh, {"test": np.ones(found.rows, dtype=bool)}, work)
            fresh.save(work)

        place = cache.entry(f"task-{key}", build, self.notes)
        return StreamTask(Saved.load(read_record(place)), place)

    def read(self, path: Any, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        from seqloom.lab.data.pipeline.python_rows import rows_of

        return rows_of(path, self.saved, chunk)


def build_stream(found: Source, saved: Saved, work: Path) -> None:
    """The first part of the text trains, the last tests, unless files say otherwise."""
    from seqloom.lab.data.pipeline.build import text_coder

    saved.x = text_coder(found, "text", "generate", saved.options, saved.notes, end=False)
    sides = _sides(found, saved)
    saved.x.fit(f.filter(sides["train"][start : start + len(f)]) for start, f in found.chunks(["text"]))
    _write(found, saved, sides, work)


def _sides(found: Source, saved: Saved) -> dict[str, Array]:
    """split -> (rows,) bool"""
    given = np.concatenate([np.full(p.rows, p.split or "", dtype=object) for p in found.parts])
    if set(given.tolist()) != {""}:
        return {name: given == name for name in dict.fromkeys(given.tolist())}
    lengths = [frame["text"].str.len_bytes().to_numpy() for _, frame in found.chunks(["text"])]
    place = np.cumsum(np.concatenate(lengths), dtype=np.float64)
    place /= place[-1]
    edges = np.cumsum([0.0, *SHARES.values()])
    saved.notes.say("split by position: " + ", ".join(f"{share:.0%} {name}" for name, share in SHARES.items()))
    return {n: (place > a) & (place <= b + 1e-9) for n, a, b in zip(SHARES, edges[:-1], edges[1:], strict=True)}


def _write(found: Source, saved: Saved, sides: dict[str, Array], work: Path) -> None:
    writers = [Writer(work, f"ids.{i}") for i in range(len(sides))]
    sizes = [0] * len(sides)
    for start, frame in found.chunks(["text"]):
        for number, side in enumerate(sides.values()):
            ids, _ = saved.x.encode(frame.filter(side[start : start + len(frame)]))
            writers[number].add(ids, np.array([len(ids)]))
            sizes[number] += len(ids)
    for name, size, side, writer in zip(sides, sizes, sides.values(), writers, strict=True):
        writer.close()
        if size < 2:
            raise UserError(f"{found.parts[0].label}: {name} would have {size} steps; give a longer text")
        saved.splits[name] = {"size": size - 1, "hash": cache.digest(found.fingerprint, np.packbits(side).tobytes())}
