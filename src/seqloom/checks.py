"""What people hand to a layer, taken or refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.errors import InputError
from seqloom.precision import autocast_dtype


def fits(x: Tensor, weight: Tensor, name: str = "input") -> None:
    """The input is where the weights are, and of their type."""
    if x.device != weight.device:
        raise InputError(f"{name} is on {x.device}, the layer's weights are on {weight.device}; move one with .to()")
    if x.dtype != weight.dtype and not autocast_dtype(x.device.type):
        raise TypeError(f"{name} is {x.dtype}, the layer's weights are {weight.dtype}; convert one with .to()")


def read_lengths(
    lengths: Tensor | Sequence[int], rows: int, steps: int, device: torch.device, name: str = "lengths"
) -> Tensor:
    """(B,): whole numbers from 0 to `steps`. As int64, since sums of smaller types begin anew below 0 and above."""
    if not isinstance(lengths, Tensor):
        none = not isinstance(lengths, int) and not len(lengths)
        lengths = torch.tensor(lengths, dtype=torch.int64 if none else None)
    if lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise TypeError(f"{name} must be whole numbers, got {lengths.dtype}")
    if tuple(lengths.shape) != (rows,):
        raise InputError(f"{name} must have one entry for each of {rows} rows, got shape {tuple(lengths.shape)}")
    looked_at = lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    if looked_at and rows and not torch._C._are_functorch_transforms_active():
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > steps:
            wrong = low if low < 0 else high
            raise InputError(f"{name} must lie between 0 and the {steps} steps of input, got {wrong}")
    return lengths.to(device, torch.int64)
