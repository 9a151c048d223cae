"""What people hand to a layer, taken or refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import DtypeError, InputError, UserTypeError
from seqloom.core.precision import autocast_dtype

_PLAIN = (Tensor, nn.Parameter)  # others, such as those of an export, have no memory of their own
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # by vmap, grad or jvp


def check_placement(x: Tensor, weight: Tensor, name: str = "input") -> None:
    """The input is where the weights are, and of their type."""
    if x.device != weight.device:
        raise InputError(f"{name} is on {x.device}, the layer's weights are on {weight.device}; move one with .to()")
    if x.dtype != weight.dtype and not autocast_dtype(x.device.type):
        raise DtypeError(f"{name} is {x.dtype}, the layer's weights are {weight.dtype}; convert one with .to()")


def read_lengths(
    lengths: Tensor | Sequence[int], rows: int, steps: int, device: torch.device, name: str = "lengths"
) -> Tensor:
    """(B,): whole numbers from 0 to `steps`. As int64, since sums of smaller types begin anew below 0 and above."""
    if not isinstance(lengths, Tensor):
        none = not isinstance(lengths, int) and not len(lengths)
        lengths = torch.tensor(lengths, dtype=torch.int64 if none else None)
    if lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise UserTypeError(f"{name} must be whole numbers, got {lengths.dtype}")
    if tuple(lengths.shape) != (rows,):
        raise InputError(f"{name} must have one entry for each of {rows} rows, got shape {tuple(lengths.shape)}")
    looked_at = lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    if looked_at and rows and not torch._C._are_functorch_transforms_active():
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > steps:
            wrong = low if low < 0 else high
            raise InputError(f"{name} must lie between 0 and the {steps} steps of input, got {wrong}")
    return lengths.to(device, torch.int64)


def read_state(hx: Tensor | Sequence[Tensor], shapes: Sequence[tuple[int, ...]], x: Tensor) -> tuple[Tensor, ...]:
    """One tensor or several, of these shapes, where x is and of its type (any type under autocast)."""
    given = (hx,) if isinstance(hx, Tensor) else tuple(hx) if isinstance(hx, (tuple, list)) else ()
    strange = [hx] if not given else [s for s in given if not isinstance(s, Tensor)]
    if strange:
        raise UserTypeError(f"hx must be a Tensor, or a tuple of {len(shapes)}, got {type(strange[0]).__name__} in it")
    if len(given) != len(shapes):
        raise InputError(f"hx must have {len(shapes)} tensor(s), got {len(given)}")
    for i, (s, shape) in enumerate(zip(given, shapes, strict=True)):
        if tuple(s.shape) != shape:
            raise InputError(f"hx[{i}] has shape {tuple(s.shape)}, expected {shape}")
        if s.device != x.device:
            raise InputError(f"hx[{i}] is on {s.device}, the input on {x.device}; move one with .to()")
        if s.dtype != x.dtype and not autocast_dtype(s.device.type):
            raise DtypeError(f"hx[{i}] is {s.dtype}, the input {x.dtype}; convert one with .to()")
    return given


def resolve(t: Tensor, name: str) -> Tensor:
    """Return a tensor that can be read by address: negated views and efficient zero tensors are written out.

    Args:
        t: A tensor of any kind.
        name: What the error calls it.

    Raises:
        InputError: If its memory was freed, as by `t.untyped_storage().resize_(0)`.
    """
    if t.is_neg():
        return t.resolve_neg()
    if t._is_zerotensor():
        return t.clone()
    if type(t) not in _PLAIN or _wrapped(t):
        return t
    if not has_memory(t):
        raise InputError(f"{name} has shape {tuple(t.shape)}, but its memory was freed; create it again")
    return t


def has_memory(t: Tensor) -> bool:
    """Return whether the storage of a tensor holds all of its elements."""
    there = t.untyped_storage().nbytes()
    if there >= (t.storage_offset() + t.numel()) * t.itemsize:
        return True
    last = t.storage_offset() + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return there > last * t.itemsize or not t.numel()  # an expanded view has fewer elements in memory


def read_saved(ctx: Any) -> tuple[Any, ...]:
    """Return the tensors that a forward saved for its backward.

    Args:
        ctx: The context of a torch.autograd.Function.

    Raises:
        RuntimeError: If one of them was changed in place since; says what to write instead.
    """
    try:
        return tuple(ctx.saved_tensors)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        told = str(error).split(" Hint:")[0].rstrip(".")
        raise RuntimeError(
            f"{told}. The input, output, state or a weight of a seqloom layer was changed in place before backward; "
            "write y = y.relu() in place of y.relu_(), or change a clone()"
        ) from None
