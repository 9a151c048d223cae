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


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    # The branch that is not taken must not overflow: its derivative would be 0 times infinity. Not clamp, whose
    # derivative at a limit is 0 from torch 2.15 on.
    negative = torch.where(x > 0, 0.0, x)
    return torch.where(x > 0, scale * x, scale * alpha * torch.expm1(input_scale * negative))


def _hardtanh(x: Tensor, low: float = -1, high: float = 1) -> Tensor:
    """Clamp x with derivative 0 at both limits; that of torch's clamp depends on torch's version."""
    return torch.where(x <= low, low, torch.where(x >= high, high, x))


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    if eps is not None:  # clamp with derivative 1 at both limits
        x = torch.where(x < eps, eps, torch.where(x > 1 - eps, 1 - eps, x))
    return torch.log(x / (1 - x))


def _asinh(x: Tensor) -> Tensor:
    a = torch.where(x < 0, -x, x)  # the derivative of abs is 0 at 0
    return torch.where(x < 0, -1.0, 1.0) * torch.log1p(a + a * a / (1 + torch.sqrt(a * a + 1)))


def _safe_sqrt(x: Tensor) -> Tensor:
    """Return the square root; its derivative at 0 is 0."""
    is_zero = x == 0
    return torch.where(is_zero, 0.0, torch.sqrt(torch.where(is_zero, 1.0, x)))


def _vector_norm(
    x: Tensor, order: float | None = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: object = None
) -> Tensor:
    dims = list(range(x.dim())) if dim is None else list(dim)
    if dtype not in (None, x.dtype) or order not in (1, 2):
        return NotImplemented
    if order == 1:
        return x.abs().sum(dims, keepdim=keepdim)
    return _safe_sqrt((x * x).sum(dims, keepdim=keepdim))


def _variance(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    dims = list(range(x.dim())) if dim is None else list(dim)
    count = 1
    for d in dims:
        count *= x.shape[d]
    centred = x - x.mean(dims, keepdim=True)
    return (centred * centred).sum(dims, keepdim=keepdim) / max(count - (1 if correction is None else correction), 0)


def _is_first(x: Tensor, dim: int) -> bool:
    """Return whether a dimension is the first, which is the batch unless x is a weight."""
    return dim in (0, -x.dim())


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if len(shifts) != len(dims) or any(_is_first(x, dim) for dim in dims):
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        n = x.shape[dim]
        if k := shift % n:
            x = torch.cat([x.narrow(dim, n - k, k), x.narrow(dim, 0, n - k)], dim)
    return x


def _flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    if any(_is_first(x, dim) or x.shape[dim] > MOST_PIECES for dim in dims):
        return NotImplemented
    for dim in dims:
        x = torch.cat([x.narrow(dim, i, 1) for i in reversed(range(x.shape[dim]))], dim)
    return x


def _accumulate(
    x: Tensor, dim: int, combine: Callable[[Tensor, Tensor], Tensor], neutral: float, *, dtype: object = None
) -> Tensor:
    """Return running sums or products by the parallel scan of Hillis and Steele."""
    n, reach = x.shape[dim], 1
    if n > MOST_PIECES or _is_first(x, dim) or dtype not in (None, x.dtype):
        return NotImplemented
    while reach < n:
        earlier = x.narrow(dim, 0, n - reach)
        filler = torch.full_like(x.narrow(dim, 0, reach), neutral)
        x, reach = combine(x, torch.cat([filler, earlier], dim)), 2 * reach
    return x


def _multiply(x: Tensor, dim: int, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    """Return the product along a dimension by multiplying its two halves until one value is left."""
    if dtype not in (None, x.dtype) or _is_first(x, dim):
        return NotImplemented
    while (n := x.shape[dim]) > 1:
        half = n // 2
        product = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat([product, x.narrow(dim, n - 1, 1)], dim) if n % 2 else product
    return x if keepdim else x.squeeze(dim)


def _remainder(x: Tensor, divisor: float) -> Tensor:
    if divisor <= 0:
        return NotImplemented
    r = x - torch.floor(x / divisor) * divisor
    r = torch.where(r < 0, r + divisor, r)  # the quotient was rounded up
    return torch.where(r > divisor, r - divisor, r)


def _nan_to_num(x: Tensor, nan: float | None = None, high: float | None = None, low: float | None = None) -> Tensor:
    limits = torch.finfo(x.dtype)
    x = torch.where(x.ne(x), 0.0 if nan is None else nan, x)
    x = torch.where(x == float("inf"), limits.max if high is None else high, x)
    return torch.where(x == -float("inf"), limits.min if low is None else low, x)


# Largest value that is put together from single elements: the first call of a cell that flips 64 takes 3 s, one that
# accumulates them 4 s.
MOST_PIECES = 16
_LOG = {2: 1.4426950408889634, 10: 0.4342944819032518}  # 1 / log(base)


def _list_functions() -> Rules:
    """Return the rules of functions that are short expressions of others."""
    return {
        aten.leaky_relu.default: lambda x, slope=0.01: torch.where(x > 0, x, x * slope),
        aten.elu.default: _elu,
        aten.hardtanh.default: _hardtanh,
        aten.hardshrink.default: lambda x, limit=0.5: torch.where((x >= -limit) & (x <= limit), 0.0, x),
        aten.softshrink.default: lambda x, limit=0.5: torch.where(
            x > limit, x - limit, torch.where(x < -limit, x + limit, x * 0.0)
        ),
        aten.tan.default: lambda x: torch.sin(x) / torch.cos(x),
        aten.asinh.default: _asinh,
        aten.atanh.default: lambda x: 0.5 * (torch.log1p(x) - torch.log1p(-x)),
        aten.erfc.default: lambda x: 1 - torch.erf(x),
        aten.exp2.default: lambda x: torch.exp(x * 0.6931471805599453),
        aten.log2.default: lambda x: torch.log(x) * _LOG[2],
        aten.log10.default: lambda x: torch.log(x) * _LOG[10],
        aten.logit.default: _logit,
        aten.hypot.default: lambda a, b: _safe_sqrt(a * a + b * b),
        aten.sgn.default: torch.sign,
        aten.isnan.default: lambda x: x.ne(x),
        aten.nan_to_num.default: _nan_to_num,
        aten.remainder.Scalar: _remainder,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.norm.ScalarOpt_dim: _vector_norm,
        aten.var.correction: _variance,
        aten.std.correction: lambda x, *args, **settings: _safe_sqrt(_variance(x, *args, **settings)),
        aten.roll.default: _roll,
        aten.flip.default: _flip,
        aten.cumsum.default: lambda x, dim, **settings: _accumulate(x, dim, torch.add, 0, **settings),
        aten.cumprod.default: lambda x, dim, **settings: _accumulate(x, dim, torch.mul, 1, **settings),
        aten.prod.dim_int: _multiply,
    }


def early_rules() -> Rules:
    """Return the rules for the step itself."""
    return _list_functions() | {
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
        aten.hardsigmoid.default: lambda x: _hardtanh(x + 3, 0, 6) / 6,  # torch's derivative is off by 5e-9 in float64
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
