"""The few lines that several cells share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError


def empty(*shape: int) -> nn.Parameter:
    """A parameter that `reset_parameters` fills."""
    return nn.Parameter(torch.empty(*shape))


def masked(h: Tensor, mask: Tensor | None) -> Tensor:
    """h as a product sees it: with recurrent dropout, where there is any."""
    return h if mask is None else h * mask


def linear_(weight: Tensor, bias: Tensor | None = None) -> None:
    """torch.nn.Linear's start: weight, then bias, uniform in +-1/sqrt(fan in)."""
    fan_in = weight.shape[1]
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        nn.init.uniform_(bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))


def set_gate(index: int, bias: Tensor, bias_ih: nn.Parameter | None, bias_hh: nn.Parameter | None) -> None:
    """Let gate number `index` start from `bias`, whole in bias_ih and nothing in bias_hh."""
    if bias_ih is None or bias_hh is None:
        raise UserError("a gate bias was asked for, but bias=False leaves none to set")
    gate = slice(index * len(bias), (index + 1) * len(bias))
    with torch.no_grad():
        bias_ih[gate] = bias
        bias_hh[gate] = 0.0


def torch_may(x: Tensor) -> bool:
    """Whether torch's own function of a step does all that `step` does; on a GPU it has no forward mode."""
    return x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
