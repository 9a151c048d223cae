"""Digits, a pixel a step."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.studies.data.examples import Examples
from seqloom.lab.studies.data.place import find

PIXELS = 28 * 28
FILES = {"train": "train", "test": "t10k"}


def mnist(split: str) -> Examples:
    """Images of "train" (60,000) or "test" (10,000) as bytes (N, 784), row by row. LeCun et al. 1998."""
    begin = FILES[split]
    images, labels = find("mnist", f"{begin}-images-idx3-ubyte.gz", f"{begin}-labels-idx1-ubyte.gz")
    x = idx(images).flatten(1)
    return Examples(x, torch.full((len(x),), x.shape[1]), idx(labels).long())


def idx(file: Path) -> Tensor:
    """A file of the idx format: two zeros, a type, the number of sizes, the sizes, then bytes."""
    with gzip.open(file) as stream:
        data = bytearray(stream.read())
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise UserError(f"{file} is no idx file of bytes; get it again")
    sizes = [int.from_bytes(data[4 * i : 4 * i + 4], "big") for i in range(1, 1 + data[3])]
    if len(data) != 4 + 4 * len(sizes) + math.prod(sizes):
        raise UserError(f"{file} should hold {' x '.join(map(str, sizes))} bytes, but is cut short; get it again")
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * len(sizes)).view(sizes)
