"""MNIST digits, one pixel per step."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import torch
from torch import Tensor

from research.studies.data.examples import LabelledRows
from research.studies.data.place import find
from seqloom.core.errors import UserError

PIXELS = 28 * 28
FILES = {"train": "train", "test": "t10k"}


def mnist(split: str) -> LabelledRows:
    """Return images of "train" (60,000) or "test" (10,000) as bytes (N, 784), row by row. LeCun et al. 1998."""
    begin = FILES[split]
    images, labels = find("mnist", f"{begin}-images-idx3-ubyte.gz", f"{begin}-labels-idx1-ubyte.gz")
    x = read_idx(images).flatten(1)
    return LabelledRows(x, torch.full((len(x),), x.shape[1]), read_idx(labels).long())


def read_idx(file: Path) -> Tensor:
    """Read a file in idx format: two zeros, a type, the number of sizes, the sizes, then bytes."""
    with gzip.open(file) as stream:
        data = bytearray(stream.read())
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise UserError(f"{file} is not an idx file of bytes; download it again")
    sizes = [int.from_bytes(data[4 * i : 4 * i + 4], "big") for i in range(1, 1 + data[3])]
    if len(data) != 4 + 4 * len(sizes) + math.prod(sizes):
        raise UserError(
            f"{file} should contain {' x '.join(map(str, sizes))} bytes, but is truncated; download it again"
        )
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * len(sizes)).view(sizes)
