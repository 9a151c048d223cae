"""Helpers that several cells share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from seqloom.core import memory
from seqloom.core.errors import UserError


def empty(*shape: int) -> nn.Parameter:
    """Return an uninitialised parameter for `reset_parameters` to fill."""
    return nn.Parameter(memory.empty(*shape))


def apply_mask(h: Tensor, mask: Tensor | None) -> Tensor:
    """Apply recurrent dropout to h before a product."""
    return h if mask is None else h * mask


def init_linear(weight: Tensor, bias: Tensor | None = None) -> None:
    """Initialise as torch.nn.Linear does: weight, then bias, uniform in +-1/sqrt(fan in)."""
    fan_in = weight.shape[1]
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        nn.init.uniform_(bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))


def set_gate(index: int, bias: Tensor, bias_ih: nn.Parameter | None, bias_hh: nn.Parameter | None) -> None:
    """Set the bias of gate number `index`: all of it in bias_ih, 0 in bias_hh."""
    if bias_ih is None or bias_hh is None:
        raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
    gate = slice(index * len(bias), (index + 1) * len(bias))
    with torch.no_grad():
        bias_ih[gate] = bias
        bias_hh[gate] = 0.0


def can_use_torch(x: Tensor) -> bool:
    """Return whether torch's function for one step may replace `step`; on a GPU it lacks forward-mode derivatives."""
    return x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def is_plain(x: Tensor) -> bool:
    """Return whether the values of x can be read at no cost: on a CPU, outside traces and transforms."""
    return (
        type(x) is Tensor
        and x.device.type == "cpu"
        and not (torch.compiler.is_compiling() or is_functorch_wrapped_tensor(x))
    )


def keep_positive(x: Tensor) -> Tensor:
    """Return x + 1/2 where x >= 0 and sigmoid(x) elsewhere: continuous, increasing and above 0 (Feng et al. 2024)."""
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))
