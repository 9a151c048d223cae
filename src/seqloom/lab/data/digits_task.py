"""The handwritten digits of lab/data/digits.py as a `Task`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.lab.data.digits import load
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.task import Batch, Classes, Features, Split, Task
from seqloom.lab.files import sealed


class DigitsTask(Task):
    """8 steps of 8 grey values ("rows"), or 64 of one ("pixels"); ten classes."""

    def __init__(self, reading: str = "rows", split_seed: int = 0) -> None:
        data = load(reading, split_seed)
        self.options = {"reading": reading, "split_seed": split_seed}
        self._parts = {"train": data.train, "valid": data.validation, "test": data.test}
        splits = {
            n: Split(len(y), cache.digest(x.numpy().tobytes(), y.numpy().tobytes()))
            for n, (x, y) in self._parts.items()
        }
        grey = Features(tuple(f"grey_{i + 1}" for i in range(data.features)))
        super().__init__("digits", "classify", grey, Classes(tuple("0123456789")), splits)

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
        size = self._size(split, batch, tokens)
        x, y = self._parts[split]
        order = torch.arange(len(x))
        if split == "train":
            mixed = int(cache.digest(f"{seed} {epoch}")[:15], 16)
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(mixed))
        for rows in order.split(size)[skip:]:
            yield Batch(x[rows], torch.full((len(rows),), x.shape[1]), rows, y[rows])

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        return -(-len(self._parts[split][0]) // self._size(split, batch, tokens))

    def _size(self, split: str, batch: int | None, tokens: int | None) -> int:
        self.check(split, batch, tokens)
        return batch or max(1, (tokens or 1) // self._parts[split][0].shape[1])

    def encode(self, rows: Sequence[Any]) -> Batch:
        """Images that are scaled already, as `load` gives them."""
        x = torch.stack([torch.as_tensor(row, dtype=torch.float32) for row in rows])
        return Batch(x, torch.full((len(x),), x.shape[1]), torch.arange(len(x)))

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        return [str(k) for k in predictions.tolist()]

    def save(self, folder: Path | str) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "task.json").write_bytes(sealed.dumps({"format": 1, "task": "digits", "options": self.options}))


def digits(reading: str = "rows", split_seed: int = 0) -> DigitsTask:
    return DigitsTask(reading, split_seed)
