"""Checks of what users pass to a layer: heads, lengths, states, devices and dtypes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from seqloom.core.errors import DtypeError, InputError, UserError, UserTypeError
from seqloom.core.plurals import count, join_choices
from seqloom.core.precision import autocast_dtype

_PLAIN = (Tensor, nn.Parameter)  # other kinds, such as the fake tensors of an export, own no memory
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # by vmap, grad or jvp


class SavedTensors(Protocol):
    """The context of a torch.autograd.Function in its backward pass."""

    @property
    def saved_tensors(self) -> tuple[Any, ...]: ...


def check_heads(heads: int, size: int, name: str, other: str = "heads") -> None:
    """Raise an error unless a size can be divided among heads; the error lists numbers that can.

    Args:
        heads: The number of heads.
        size: What is divided among them, such as the hidden size.
        name: The argument that holds the size.
        other: The argument that holds the number of heads.

    Raises:
        UserError: If `heads` is not a whole number of at least 1, or does not divide `size`.
    """
    if isinstance(heads, bool) or not isinstance(heads, Integral) or heads < 1:
        raise UserError(f"{other} must be a whole number of at least 1, got {heads!r}")
    if size > 0 and size % heads == 0:
        return
    sizes = [n for n in (size // heads * heads, (size // heads + 1) * heads) if n > 0]
    choices = [f"{name}={' or '.join(map(str, sizes))}"]
    if size > 0:
        choices.insert(0, f"{other}={join_choices([n for n in range(1, size + 1) if size % n == 0])}")
    raise UserError(
        f"{name} must be a multiple of {other}, got {name}={size} and {other}={heads}; take {', or '.join(choices)}"
    )


def check_placement(x: Tensor, weight: Tensor, name: str = "input") -> None:
    """Raise an error unless x has the device and, outside autocast, the dtype of the weights.

    Args:
        x: The input.
        weight: One of the layer's weights.
        name: What the message calls the input.

    Raises:
        InputError: If the devices differ.
        DtypeError: If the dtypes differ.
    """
    if x.device != weight.device:
        raise InputError(f"{name} is on {x.device}, the layer's weights are on {weight.device}; move one with .to()")
    if x.dtype != weight.dtype and not autocast_dtype(x.device.type):
        raise DtypeError(f"{name} is {x.dtype}, the layer's weights are {weight.dtype}; convert one with .to()")


def can_read(values: Tensor) -> bool:
    """Return whether Python may read the values of a tensor: not while a graph is traced or recorded, nor in vmap."""
    if type(values) is not Tensor or values.is_meta or _wrapped(values):
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return False
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


def read_lengths(
    lengths: Tensor | Sequence[int], rows: int, steps: int, device: torch.device, name: str = "lengths"
) -> Tensor:
    """Return lengths as an int64 tensor (B,) on a device, after checking that they lie between 0 and `steps`.

    The values are not checked on a GPU or inside torch.compile, where reading them would wait for the device. int64,
    because sums of smaller types may overflow.

    Args:
        lengths: (B,), whole numbers.
        rows: B.
        steps: The number of steps of the padded input.
        device: Where the result goes.
        name: What messages call the lengths.

    Raises:
        UserTypeError: If they are not whole numbers.
        InputError: If their number or a value is wrong.
    """
    if type(lengths) is list or (type(lengths) is Tensor and lengths.dtype is torch.int64):
        fast = _read_few(lengths, rows, steps, device)
        if fast is not None:
            return fast
    given = lengths
    if not isinstance(lengths, Tensor):
        empty = not isinstance(lengths, int) and not len(lengths)
        lengths = torch.tensor(lengths, dtype=torch.int64 if empty else None)
    if lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise UserTypeError(f"{name} must be whole numbers, got {lengths.dtype}")
    if tuple(lengths.shape) != (rows,):
        raise InputError(
            f"{name} must have one entry for each of {count(rows, 'row')}, got shape {tuple(lengths.shape)}"
        )
    readable = lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and rows and not torch._C._are_functorch_transforms_active():
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > steps:
            wrong = low if low < 0 else high
            raise InputError(f"{name} must lie between 0 and the {count(steps, 'step')} of input, got {wrong}")
    moved = lengths.to(device, torch.int64)
    return own_for_backward(moved) if moved is given else moved


MOST_READ = 256  # lengths that Python compares faster than torch


def _read_few(lengths: Any, rows: int, steps: int, device: torch.device) -> Tensor | None:  # noqa: ANN401
    """Fast path of `read_lengths` for a list or a small tensor of valid lengths; None if a full check is needed."""
    is_list = type(lengths) is list
    if device.type != "cpu" or not 0 < rows <= MOST_READ or torch.compiler.is_compiling():
        return None
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return None
    if torch._C._get_tracing_state() is not None:
        return None
    if is_list:
        if len(lengths) != rows or set(map(type, lengths)) != {int}:
            return None
    elif lengths.dim() != 1 or len(lengths) != rows or lengths.device.type != "cpu":
        return None
    values = lengths if is_list else lengths.tolist()
    if min(values) < 0 or max(values) > steps:
        return None
    if is_list:  # faster than torch.tensor
        return torch.frombuffer(array("q", values), dtype=torch.int64)
    return own_for_backward(lengths)


def own_for_backward(t: Tensor) -> Tensor:
    """Return a copy of a caller's tensor if a backward pass may read it: the caller may change it in place before.

    Tensors with gradients need none: torch notices that they have changed.
    """
    return t.clone() if torch.is_grad_enabled() and not torch.compiler.is_compiling() else t


def read_state(hx: Tensor | Sequence[Tensor], shapes: Sequence[tuple[int, ...]], x: Tensor) -> tuple[Tensor, ...]:
    """Check a state and return it as a tuple of tensors.

    Args:
        hx: A tensor, or several in a tuple or list.
        shapes: The shape that each must have.
        x: The input, whose device and (outside autocast) dtype they must have.

    Raises:
        UserTypeError: If `hx` is not made of tensors.
        InputError: If the number of tensors, a shape, a device or a dtype is wrong.
    """
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx) if isinstance(hx, (tuple, list)) else ()
    wrong = [s for s in state if not isinstance(s, Tensor)] if state else [hx]
    if wrong:
        raise UserTypeError(f"hx must be a Tensor or a tuple of {len(shapes)}, got {type(wrong[0]).__name__}")
    if len(state) != len(shapes):
        expected = "one tensor" if len(shapes) == 1 else f"a tuple of {len(shapes)} tensors, such as (h, c)"
        got = "one tensor" if isinstance(hx, Tensor) else f"a tuple of {len(state)}"
        raise InputError(f"hx must be {expected}, got {got}")
    for i, (s, shape) in enumerate(zip(state, shapes, strict=True)):
        name = "hx" if isinstance(hx, Tensor) else f"hx[{i}]"
        if tuple(s.shape) != shape:
            raise InputError(f"{name} has shape {tuple(s.shape)}, expected {shape}")
        if s.device != x.device:
            raise InputError(f"{name} is on {s.device}, the input on {x.device}; move one with .to()")
        if s.dtype != x.dtype and not autocast_dtype(s.device.type):
            raise DtypeError(f"{name} is {s.dtype}, the input {x.dtype}; convert one with .to()")
    return state


def resolve(t: Tensor, name: str) -> Tensor:
    """Return a tensor that kernels can read by address; copy negated views and efficient zero tensors.

    Args:
        t: A tensor of any kind.
        name: What the message calls it.

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
    size = t.untyped_storage().nbytes()
    if size >= (t.storage_offset() + t.numel()) * t.itemsize:
        return True
    last = t.storage_offset() + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return size > last * t.itemsize or not t.numel()  # an expanded view has fewer elements in memory


def read_saved(ctx: SavedTensors) -> tuple[Any, ...]:
    """Return the tensors that a forward pass saved for its backward pass.

    Args:
        ctx: The context of a torch.autograd.Function.

    Raises:
        RuntimeError: If one of them was changed in place since then; the message says what to write instead.
    """
    try:
        return tuple(ctx.saved_tensors)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        cause = str(error).split(" Hint:")[0].rstrip(".")
        raise RuntimeError(
            f"{cause}. The input, output, state or a weight of a seqloom layer was changed in place before backward; "
            "write y = y.relu() instead of y.relu_(), or change a clone()"
        ) from None


def are_contiguous(weights: Sequence[Tensor | None]) -> bool:
    """Return whether all weights are contiguous; None for those that a cell lacks."""
    for w in weights:  # noqa: SIM110  # in every call, where a generator takes twice as long
        if w is not None and not w.is_contiguous():
            return False
    return True


def read_moved(
    weights: Sequence[Any], shapes: Sequence[torch.Size | None], dtype: torch.dtype, device: torch.device
) -> list[Any]:
    """Return the weights of a backward pass, contiguous, when they are not where the forward pass read them.

    Args:
        weights: As the forward pass saved them; None for those that a cell lacks.
        shapes: Their shapes in the forward pass.
        dtype: Their type in the forward pass.
        device: Where they were in the forward pass.

    Raises:
        RuntimeError: If a weight has another shape, type or device now, or no memory.
    """
    for w, shape in zip(weights, shapes, strict=True):
        if w is None:
            continue
        if w.shape != shape or w.dtype != dtype or w.device != device:
            raise RuntimeError(
                f"a weight of shape {tuple(shape or ())}, {dtype} on {device}, has become one of shape "
                f"{tuple(w.shape)}, {w.dtype} on {w.device} after the forward pass; change the layer after backward"
            )
        if not has_memory(w):
            raise RuntimeError(
                f"the memory of a weight of shape {tuple(w.shape)} was freed after the forward pass; "
                "bring its values back before backward"
            )
    return [None if w is None else w.contiguous() for w in weights]
