"""Decompositions of operators into simpler ones with short derivatives, for tracing a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
Rules = dict[Any, Callable[..., Any]]


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    e = torch.exp(x - x.amax(dim, keepdim=True).detach())
    return e / e.sum(dim, keepdim=True)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    shifted = x - x.amax(dim, keepdim=True).detach()
    return shifted - torch.log(torch.exp(shifted).sum(dim, keepdim=True))


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    rstd = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    y = centred * rstd
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean, rstd


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))


def _lerp(a: Tensor, b: Tensor, weight: Tensor | float) -> Tensor:
    """Interpolate as torch does: exact at both ends."""
    gap = b - a
    if not isinstance(weight, Tensor):
        return a + weight * gap if weight < 0.5 else b - gap * (1 - weight)
    return torch.where(weight < 0.5, a + weight * gap, b - gap * (1 - weight))


def early_rules() -> Rules:
    """Return the rules for the step itself."""
    return {
        aten.gelu.default: _gelu,
        aten.silu.default: lambda x: x * torch.sigmoid(x),
        aten.log_sigmoid_forward.default: lambda x: (-F.softplus(-x, 1, 40), x),
        aten._softmax.default: _softmax,
        aten._log_softmax.default: _log_softmax,
        aten.native_layer_norm.default: _layer_norm,
        aten.addmm.default: lambda b, x, w, beta=1, alpha=1: (
            beta * b + alpha * torch.mm(x, w) if (beta, alpha) != (1, 1) else torch.mm(x, w) + b
        ),
        aten.baddbmm.default: lambda b, x, w, beta=1, alpha=1: beta * b + alpha * torch.bmm(x, w),
        aten.lerp.Tensor: _lerp,
        aten.lerp.Scalar: _lerp,
        aten.addcmul.default: lambda a, b, c, value=1: a + value * b * c,
        aten.addcdiv.default: lambda a, b, c, value=1: a + value * b / c,
        aten.hardsigmoid.default: lambda x: (x + 3).clamp(0, 6) / 6,  # torch's derivative is off by 5e-9 in float64
    }


@cache
def late_rules() -> Rules:
    """Return the rules for the joint graph: torch's, which take 0.1 s to collect, and shorter ones."""
    from torch._decomp import core_aten_decompositions

    whole = {
        aten.slice_backward.default,
        aten.select_backward.default,
        aten.sigmoid_backward.default,
        aten.tanh_backward.default,
        aten.roll.default,
    }
    rules: Rules = {k: v for k, v in core_aten_decompositions().items() if k not in whole}

    def mean(x: Tensor, dims: Sequence[int] | None, keepdim: bool = False, dtype: object = None) -> Tensor:
        dims = list(range(x.dim())) if dims is None else dims
        count = 1
        for d in dims:
            count *= x.shape[d]
        return x.sum(tuple(dims), keepdim=keepdim) / count

    # torch's own rule joins along the batch and then views
    rules[aten.stack.default] = lambda parts, dim=0: torch.cat([p.unsqueeze(dim) for p in parts], dim)
    rules[aten.empty_like.default] = lambda x, **_: torch.zeros_like(x)
    rules[aten.t.default] = lambda w: w.transpose(0, 1)
    rules[aten.mean.dim] = mean
    rules[aten.mean.default] = lambda x: x.sum() / x.numel()
    return rules
