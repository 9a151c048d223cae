"""Handwritten digits as sequences: small, real, and included in scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.task import Batch, Classes, Features, Pass, Split, Task, write_record
from seqloom.lab.kinds.forms import find_kind

READINGS = {"rows": (8, 8), "pixels": (64, 1)}  # steps, features of a step
Examples = tuple[Tensor, Tensor]  # x (N, T, D), y (N,)


@dataclass(frozen=True, eq=False)
class Digits:
    """1,797 images of 8 x 8 grey values, ten classes, in three parts."""

    reading: str
    train: Examples
    validation: Examples
    test: Examples
    classes: int = 10

    @property
    def steps(self) -> int:
        return self.train[0].shape[1]

    @property
    def features(self) -> int:
        return self.train[0].shape[2]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of images in each part."""
        return {part: len(getattr(self, part)[0]) for part in ("train", "validation", "test")}


def load(reading: str = "rows", seed: int = 0) -> Digits:
    """Split the digits into 60% train, 20% validation and 20% test, stratified by digit.

    Grey values are standardised with the mean and standard deviation of all training pixels.

    Args:
        reading: "rows" for 8 steps of 8 grey values, "pixels" for 64 steps of one.
        seed: Seed of the split.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    if reading not in READINGS:
        raise UserError(f"reading must be one of {', '.join(READINGS)}, got {reading!r}")
    images, labels = load_digits(return_X_y=True)
    x, rest, y, rest_y = train_test_split(images, labels, train_size=0.6, stratify=labels, random_state=seed)
    halves = train_test_split(rest, rest_y, train_size=0.5, stratify=rest_y, random_state=seed)
    mean, deviation = x.mean(), x.std()

    def examples(images: object, labels: object) -> Examples:
        grey = torch.as_tensor(images, dtype=torch.float32)
        return ((grey - mean) / deviation).view(-1, *READINGS[reading]), torch.as_tensor(labels)

    return Digits(reading, examples(x, y), examples(halves[0], halves[2]), examples(halves[1], halves[3]))


class DigitsTask(Task):
    """The digits as a task; the arguments are those of `load`."""

    def __init__(self, reading: str = "rows", split_seed: int = 0) -> None:
        data = load(reading, split_seed)
        self.options = {"reading": reading, "split_seed": split_seed}
        self.steps = data.steps
        self._parts = {"train": data.train, "valid": data.validation, "test": data.test}
        splits = {
            n: Split(len(y), cache.digest(x.numpy().tobytes(), y.numpy().tobytes()))
            for n, (x, y) in self._parts.items()
        }
        grey = Features(tuple(f"grey_{i + 1}" for i in range(data.features)))
        target = Classes(tuple("0123456789"))
        super().__init__("digits", find_kind(target.as_target), grey, target, splits)

    def iterate(self, one: Pass, skip: int) -> Iterator[Batch]:
        x, y = self._parts[one.split]
        order = torch.arange(len(x))
        if one.split == "train":
            mixed_seed = int(cache.digest(f"{one.seed} {one.epoch}")[:15], 16)
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(mixed_seed))
        for rows in order.split(self.choose_batch_size(one))[skip:]:
            yield Batch(x[rows], torch.full((len(rows),), x.shape[1]), rows, y[rows])

    def encode(self, rows: Sequence[Any]) -> Batch:
        """Stack images that are already standardised, as `load` returns them."""
        x = torch.stack([torch.as_tensor(row, dtype=torch.float32) for row in rows])
        return Batch(x, torch.full((len(x),), x.shape[1]), torch.arange(len(x)))

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        return [str(k) for k in predictions.tolist()]

    def save(self, folder: Path | str) -> None:
        write_record(folder, {"task": "digits", "options": self.options})
