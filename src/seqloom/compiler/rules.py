"""Decompositions of operators into simpler ones with short derivatives, for tracing a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.compiler.functions import Derivative, DerivativeRule, own_derivative

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


_ATAN_P = (-0.8750608600031904, -16.157537187333652, -75.00855792314705, -122.88666844901361, -64.85021904942025)
_ATAN_Q = (24.858464901423062, 165.02700983169885, 432.88106049129027, 485.3903996359137, 194.5506571482614)


def _atan_of_positive(a: Tensor) -> Tensor:
    """Return the arc tangent of a number that is not negative: the rational form of the Cephes library (Moshier)."""
    is_large, is_small = a > 2.414213562373095, a <= 0.66
    w = torch.where(is_large, -1 / a, torch.where(is_small, a, (a - 1) / (a + 1)))
    z = w * w
    p = (((_ATAN_P[0] * z + _ATAN_P[1]) * z + _ATAN_P[2]) * z + _ATAN_P[3]) * z + _ATAN_P[4]
    q = ((((z + _ATAN_Q[0]) * z + _ATAN_Q[1]) * z + _ATAN_Q[2]) * z + _ATAN_Q[3]) * z + _ATAN_Q[4]
    zero = torch.zeros_like(a)
    low = torch.where(is_large, 6.123233995736766e-17, torch.where(is_small, zero, 3.061616997868383e-17))
    high = torch.where(is_large, math.pi / 2, torch.where(is_small, zero, math.pi / 4))
    return high + (w + (w * z * (p / q) + low))


def _atan(x: Tensor) -> Tensor:
    r = _atan_of_positive(torch.where(x < 0, -x, x))
    y = torch.where(x > 0, r, torch.where(x < 0, -r, x))  # x itself is 0, or not a number
    return own_derivative([x], [x], [y], "atan")[0]


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = torch.broadcast_tensors(y, x)
    a, b = torch.where(y < 0, -y, y), torch.where(x < 0, -x, x)
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    ratio = torch.where(high == 0, 0.0, torch.where(low == math.inf, 1.0, low / high))
    r = _atan_of_positive(ratio)
    r = torch.where(a > b, math.pi / 2 - r, r)
    r = torch.where(_is_negative(x), math.pi - r, r)
    return own_derivative([y, x], [y, x], [torch.where(_is_negative(y), -r, r)], "atan2")[0]


def _is_negative(x: Tensor) -> Tensor:
    """Return whether the sign of x is negative; -0.0 has one too."""
    return (x < 0) | ((x == 0) & (1 / x < 0))


def _differentiate_atan2(y: Tensor, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    square = y * y + x * x
    share = torch.where(square == 0, 0.0, 1 / square)
    return g * x * share, g * -y * share


# Derivatives of functions that are approximated piece by piece.
RULES: dict[str, Derivative] = {
    "atan": DerivativeRule(lambda x, g: (g / (x * x + 1),)),
    "atan2": DerivativeRule(_differentiate_atan2),
}


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


def _compare_all(x: Tensor, is_descending: bool) -> Tensor:
    """Return which element (..., i) of the last dimension is at which place (..., r, 1) when they are sorted.

    Equal elements keep their order, and what is not a number counts as the largest, as in torch.
    """
    n = x.shape[-1]
    key = torch.where(x.ne(x), math.inf, x)
    a, b, at = key.unsqueeze(-1), key.unsqueeze(-2), torch.arange(n)
    comes_first = (b > a if is_descending else b < a) | ((b == a) & (at.unsqueeze(0) < at.unsqueeze(1)))
    rank = comes_first.to(x.dtype).sum(-1)
    return rank.unsqueeze(-2) == at.unsqueeze(-1)


def _sort(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None, k: int | None = None
) -> tuple[Tensor, Tensor]:
    if not x.dim() or _is_first(x, dim) or x.shape[dim] > MOST_COMPARED:
        return NotImplemented
    x = x.transpose(dim, -1)
    is_there = _compare_all(x, descending)
    is_there = is_there if k is None else is_there.narrow(-2, 0, k)
    values = torch.where(is_there, x.unsqueeze(-2), 0.0).sum(-1).transpose(dim, -1)
    places = torch.arange(x.shape[-1], dtype=x.dtype)
    return values, torch.where(is_there, places, 0.0).sum(-1).transpose(dim, -1).to(torch.int64)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, largest, k=k)


def _extreme(is_largest: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def find(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        found = _sort(x, dim, is_largest, k=1)
        return found if found is NotImplemented or keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))

    return find


def _pick(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the elements of x at places that are the same for all rows."""
    n, m = x.shape[dim], index.shape[0]
    if _is_first(x, dim) or index.dim() != 1 or n * m > MOST_COMPARED**2:
        return NotImplemented
    x = x.transpose(dim, -1)
    place = torch.where(index < 0, index + n, index)
    is_there = place.unsqueeze(-1) == torch.arange(n)
    return torch.where(is_there, x.unsqueeze(-2), 0.0).sum(-1).transpose(dim, -1)


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    dims = [d for d, index in enumerate(indices) if index is not None]
    index = indices[dims[0]] if dims else None
    if index is None or len(dims) > 1 or index.dtype not in (torch.int64, torch.int32) or not x.is_floating_point():
        return NotImplemented
    return _pick(x, dims[0], index)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    mask = indices[0]
    if accumulate or mask is None or len(indices) > 1 or mask.dtype != torch.bool:
        return NotImplemented
    return torch.where(mask, values, x) if mask.shape == x.shape and values.numel() == 1 else NotImplemented


def _select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    if _is_first(x, dim):
        return NotImplemented
    n = x.shape[dim]
    index %= n
    parts = [x.narrow(dim, 0, index), source.unsqueeze(dim), x.narrow(dim, index + 1, n - index - 1)]
    return torch.cat([p for p in parts if p.shape[dim]], dim)


def _slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    n = x.shape[dim]
    begin, stop, _ = slice(start, end).indices(n)
    if begin == 0 and stop == n and step == 1:
        return source.expand(x.shape).clone()
    if _is_first(x, dim) or step != 1:
        return NotImplemented
    parts = [x.narrow(dim, 0, begin), source, x.narrow(dim, stop, n - stop)]
    return torch.cat([p for p in parts if p.shape[dim]], dim)


def _pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    for i in range(0, len(pad), 2):
        dim, (left, right) = x.dim() - 1 - i // 2, pad[i : i + 2]
        if (left or right) and _is_first(x, dim):
            return NotImplemented
        n = x.shape[dim]
        x = x.narrow(dim, max(0, -left), n + min(0, left) + min(0, right))
        if not x.shape[dim]:
            return NotImplemented
        filler = torch.full_like(x.narrow(dim, 0, 1), value)
        before, after = (
            [filler.expand([-1] * dim + [k] + [-1] * (x.dim() - 1 - dim))] if k > 0 else [] for k in (left, right)
        )
        x = torch.cat([*before, x, *after], dim) if before or after else x
    return x


def _slice(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """Return every `step`-th element of a part as the first ones of its pieces."""
    begin, stop, _ = slice(start, end).indices(x.shape[dim])
    if step == 1 or _is_first(x, dim) or stop <= begin:
        return NotImplemented
    count = -(-(stop - begin) // step)
    x = x.narrow(dim, begin, min(x.shape[dim] - begin, count * step))
    if missing := count * step - x.shape[dim]:
        sizes = [-1] * x.dim()
        sizes[dim] = missing
        x = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, 1)).expand(sizes)], dim)
    dim %= x.dim()
    return x.unflatten(dim, (count, step)).select(dim + 1, 0)


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolve over the last dimension of (B, C, L) by one product, or a few pointwise ones, for each tap."""
    if weight.dim() != 3 or transposed or groups not in (1, x.shape[1]) or weight.shape[2] > MOST_PIECES:
        return NotImplemented
    if groups > 1 and weight.shape[0] != groups:
        return NotImplemented
    taps = weight.shape[2]
    x = _pad(x, (padding[0], padding[0]))
    length = (x.shape[2] - dilation[0] * (taps - 1) - 1) // stride[0] + 1
    total = None if bias is None else bias.unsqueeze(-1)
    for k in range(taps):
        begin = k * dilation[0]
        piece = x.narrow(2, begin, (length - 1) * stride[0] + 1)
        piece = piece if stride[0] == 1 else _slice(piece, 2, step=stride[0])
        for term in _list_taps(piece, weight, k, groups):
            total = term if total is None else total + term
    assert total is not None
    return total


def _list_taps(piece: Tensor, weight: Tensor, k: int, groups: int) -> list[Tensor]:
    C = weight.shape[1]
    if groups > 1:
        return [piece * weight[:, 0, k].unsqueeze(-1)]
    if C > MOST_CHANNELS:
        return [torch.matmul(piece.transpose(1, 2), weight[:, :, k].t()).transpose(1, 2)]
    return [piece.narrow(1, c, 1) * weight[:, c, k].unsqueeze(-1) for c in range(C)]


MOST_CHANNELS = 4  # of a convolution without products
MOST_COMPARED = 128  # elements that are sorted by comparing each with each
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
        aten.atan.default: _atan,
        aten.atan2.default: _atan2,
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
        aten.sort.default: _sort,
        aten.sort.stable: _sort,
        aten.topk.default: _topk,
        aten.max.dim: _extreme(True),
        aten.min.dim: _extreme(False),
        aten.index.Tensor: _index,
        aten.index_select.default: _pick,
        aten.index_put.default: _index_put,
        aten.select_scatter.default: _select_scatter,
        aten.slice_scatter.default: _slice_scatter,
        aten.convolution.default: _convolve,
        aten.constant_pad_nd.default: _pad,
        aten.slice.Tensor: _slice,
        aten.fill.Tensor: lambda x, value: value.expand(x.shape).clone(),
        aten.fill.Scalar: torch.full_like,
        aten.copy.default: lambda x, source, *_: source.to(x.dtype).expand(x.shape).clone(),
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
    core = dict(core_aten_decompositions().items())  # its other methods do not know all
    rules: Rules = {k: v for k, v in (core | _list_functions()).items() if k not in whole}  # of a user's backward, too

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
