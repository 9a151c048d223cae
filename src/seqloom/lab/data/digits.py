"""Handwritten digits read as sequences: small, real, and inside scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.errors import UserError

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
        """Images in each part."""
        return {part: len(getattr(self, part)[0]) for part in ("train", "validation", "test")}


def load(reading: str = "rows", seed: int = 0) -> Digits:
    """60% train, 20% validation, 20% test, each with the same share of every digit.

    All grey values are shifted and scaled by the one mean and deviation of the training images.
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
