"""The backward pass of a gated cell on a GPU, in chunks of steps, the last one first.

Unless the forward pass saved it, a batched GEMM recomputes U h of all steps of a chunk; with layer normalisation
another one computes U^T U h. A kernel runs the backward steps, and a batched GEMM computes the gradient of the weight.
The kernel also sums the gradients of biases and scales for each row of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.memory import empty_like, new_empty
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.centre import centre_gradient
from seqloom.kernels.cuda.gated.code import GatedSetting, arrange_weights, find_code
from seqloom.kernels.cuda.products import exact


class GatedGradients(NamedTuple):
    """The gradients of a scan: of the weights in the type of the kernels, of states in float32."""

    x: Tensor  # as the projected input
    weights: dict[str, Tensor | None]  # by the names of `GatedWeights`
    states: list[Tensor]  # (rows, H)
    starts: list[Tensor]


def go_back(
    setting: GatedSetting,
    values: dict[str, Any],
    dlast: Sequence[Tensor | None],
    heads: int = 1,
    dx_split: list[exact.SplitMatrix] | None = None,
) -> GatedGradients:
    """Return the gradients of a scan.

    Args:
        setting: The cell and the options of the job.
        values: The tensors of the forward pass and `dy`, by the names of the kernels' arguments. With `time_first` they
            are (T, B, ..), and `states` are the first state 0 and those after all steps, (T + 1, B, H).
        dlast: The gradients of the last states; None for zeros.
        heads: Number of heads.
        dx_split: A list to which the fp16 hi/lo split of the gradient of x (B * T, ..) is appended, if it was
            computed.
    """
    kind, H, x = setting.kind, setting.hidden, values["x"]
    time_first, wide, summed = bool(values.get("time_first")), kind.gates * H, setting.count_summed(True) * H
    T, B = x.shape[:2] if time_first else x.shape[1::-1]
    steps = min(T, count_chunk_steps(setting, B, time_first))
    code, dweight, bias = find_code(setting, "reverse", B, x.device), None, None if kind.norm else values["bias"]
    own = values["centred"] if kind.norm else values["weight"].view(-1, H, H)
    dx, transposed = empty_like(x), arrange_weights(setting, own.transpose(1, 2))
    du, copies = new_empty(x, B * steps, wide - summed), None if time_first else new_empty(x, B * steps, H)
    weights = {} if setting.kept else {"u": own.view(-1, H)}
    weights |= {"squares": _square_weights(own)} if kind.norm and code.blocks > 1 else {}
    products = {name: new_empty(x, B * steps, wide) for name in weights}
    known = values | products | {"dx": dx, "du": du, "weight": transposed, "B": B, "T": T}
    known |= {"head_rows": B // heads if heads > 1 else 0}
    names = {"dbias": kind.gates, "dscale": kind.gates * kind.norm, "dvectors": kind.vectors}
    names |= {"dbias_c": kind.memory, "dscale_c": kind.memory}
    totals, ds, dstart = _make_totals(names, dlast, values)
    known |= totals | {f"ds_{i}": d for i, d in enumerate(ds)} | {f"dstart_{i}": d for i, d in enumerate(dstart)}
    is_exact = heads == 1 and exact.is_faster(x, B * steps, wide, H)
    split_weight = exact.split(weights["u"]) if is_exact and weights else None
    sums_of_bias: list[Tensor] = []
    arguments = code.pack(known)
    for begin in reversed(range(0, T, steps)):
        arguments.from_, arguments.steps = begin, min(steps, T - begin)
        rows = B * arguments.steps
        seen = _find_states(values, begin, arguments.steps, copies)
        states = exact.split(seen) if is_exact else None
        for name, weight in weights.items():
            if states is not None and split_weight is not None:
                exact.multiply(states, split_weight, bias, products[name][:rows])
            else:
                _multiply_weight(products[name][:rows], seen, weight, bias, heads)
        code.start(arguments, B, x.device)
        parts = _list_gradients(dx.narrow(1 - time_first, begin, arguments.steps), du[:rows], summed)
        if states is not None:
            is_whole = dx_split is not None and summed > 0 and steps == T
            more = _multiply_hi_lo(parts, states, dx if is_whole else None, dx_split)
        elif kind.norm and heads == 1 and steps == T:
            more = _multiply(parts[0], seen, heads)
        else:
            more = (
                _join([_add_slices(_multiply(part, seen, heads), heads) for part in parts]).flatten(0, 1).unsqueeze(0)
            )
        dweight = more if dweight is None else dweight.add_(more)
        sums_of_bias += _sum_bias(setting, parts, heads)
    assert dweight is not None
    dweight = centre_gradient(dweight.unflatten(1, (-1, H)), x.dtype).view(-1, H) if kind.norm else dweight[0]
    added = _add_rows(totals, heads, x.dtype)
    dbias = None if values["bias"] is None else torch.stack(sums_of_bias).sum(0) if sums_of_bias else added["dbias"]
    weights = {"weight_hh": dweight, "bias_hh": dbias, "scale_hh": added["dscale"], "vectors": added["dvectors"]}
    weights |= {"scale_c": added["dscale_c"], "bias_c": added["dbias_c"]}
    typed = {name: None if t is None else t.to(x.dtype) for name, t in weights.items()}
    return GatedGradients(dx, typed, ds, dstart)


def count_chunk_steps(setting: GatedSetting, B: int, time_first: bool) -> int:
    """Return the largest number of steps in a chunk whose buffers, besides the gradient of x, fit into memory."""
    gates = setting.kind.gates
    planes = max(1, gates - setting.count_summed(True) + (not time_first))
    numbers = (1 + gates) * heuristics.GATED_CHUNK_NUMBERS * (heuristics.GATED_KEPT_CHUNKS if setting.kept else 1)
    return max(1, numbers // (planes * B * setting.hidden))


def _list_gradients(dx: Tensor, du: Tensor, summed: int) -> list[Tensor]:
    """Return the gradients of U h as two matrices: the first columns come from the gradient of x, the others from du.

    Args:
        dx: (.., .., planes * H) of a chunk.
        du: (rows, columns).
        summed: The number of columns that come from dx.
    """
    parts = [dx[..., :summed].flatten(0, 1)] if summed else []
    return [*parts, du] if du.shape[1] else parts


def _make_totals(
    planes: dict[str, int], dlast: Sequence[Tensor | None], values: dict[str, Any]
) -> tuple[dict[str, Tensor | None], list[Tensor], list[Tensor]]:
    """Allocate zeros for the sums of gradients, and the gradients of the last states and the starts, in one piece.

    Args:
        planes: How many planes (B, H) each sum has.
        dlast: The gradients of the last states; None for zeros.
        values: The tensors of the forward pass.
    """
    first, starts = values["first_0"], [f"start_{i}" in values for i in range(len(dlast))]
    all_planes = torch.zeros((sum(planes.values()) + len(dlast) + sum(starts), *first.shape), device=first.device)
    sizes = [*planes.values(), *[1] * (len(dlast) + sum(starts))]
    parts = all_planes.split(sizes)
    totals = {name: part if n else None for (name, n), part in zip(planes.items(), parts, strict=False)}
    ds = [part[0] for part in parts[len(planes) : len(planes) + len(dlast)]]
    for d, given in zip(ds, dlast, strict=True):
        if given is not None:
            d.copy_(given)
    return totals, ds, [part[0] for part in parts[len(planes) + len(dlast) :]]


def _add_rows(totals: dict[str, Tensor | None], heads: int, dtype: torch.dtype) -> dict[str, Tensor | None]:
    """Return the sums over the rows of each head, (heads * planes * H,), in this type."""
    planes = [0 if t is None else len(t) for t in totals.values()]
    first = next(t for t in totals.values() if t is not None)
    B, H = first.shape[1:]
    every = first.as_strided((sum(planes), heads, B // heads, H), (B * H, B // heads * H, H, 1))
    parts = every.sum(2, dtype=torch.float32).to(dtype).split(planes)
    return {
        name: None if total is None else part.transpose(0, 1).flatten()
        for (name, total), part in zip(totals.items(), parts, strict=True)
    }


def _sum_bias(setting: GatedSetting, parts: Sequence[Tensor], heads: int) -> list[Tensor]:
    """Return the gradient of the bias in a chunk; none if the kernel's own sum is used.

    The kernel sums step by step, whose error in float32 is up to 4 times that of the loop.
    """
    if setting.size == 2 or setting.kind.norm:
        return []
    return [_join([part.unflatten(0, (heads, -1)).sum(1) for part in parts]).flatten()]


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate (heads, columns, ..) of all parts."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)


def _add_slices(parts: Tensor, heads: int) -> Tensor:
    """Sum a gradient in split-K slices: (heads * slices, columns, H) to (heads, columns, H)."""
    return parts.unflatten(0, (heads, -1)).sum(1) if len(parts) > heads else parts


def _multiply_hi_lo(
    parts: Sequence[Tensor], states: exact.SplitMatrix, dx: Tensor | None, dx_split: list[exact.SplitMatrix] | None
) -> Tensor:
    """Compute du^T states for the columns of all parts; dx, if given, begins with the first part."""
    splits = [exact.split(part) for part in parts[dx is not None :]]
    if dx is not None and dx_split is not None:
        dx_split.append(exact.split(dx))
        splits.insert(0, dx_split[0].narrow(parts[0].shape[1]))
    return _join([exact.multiply_transposed(split, states).unsqueeze(0) for split in splits])


def _square_weights(own: Tensor) -> Tensor:
    """Return U^T U / sqrt(H) of centred weights (.., H, H): (.. * H, H).

    Its product with a state corrects the gradient of a normalised product (reverse.cu).
    """
    squares = empty_like(own)
    return torch.baddbmm(
        squares, own.transpose(1, 2), own, beta=0, alpha=1 / math.ceil(math.sqrt(own.shape[1])), out=squares
    ).view(-1, own.shape[1])


def _find_states(values: dict[str, Any], begin: int, steps: int, copies: Tensor | None) -> Tensor:
    """Return the states before some steps, as the products saw them: (B * steps, H), in `copies` if they are copied."""
    if copies is None:
        states: Tensor = values["states"][begin : begin + steps].flatten(0, 1)
        return states
    B, H = values["first_0"].shape
    seen = copies[: B * steps]
    _copy_states(seen.view(B, -1, H), values, begin)
    return seen


def _copy_states(seen: Tensor, values: dict[str, Any], begin: int) -> None:
    """Copy the states before some steps, as the products saw them."""
    steps, y, mask, reset = seen.shape[1], values["y"], values["mask"], values["reset"]
    seen[:, 0].copy_(values["first_0"] if begin == 0 else y[:, begin - 1])
    seen[:, 1:].copy_(y[:, begin : begin + steps - 1])
    if reset is not None:
        is_reset = reset[:, begin : begin + steps].unsqueeze(-1)
        torch.where(is_reset, values["start_0"].unsqueeze(1).to(seen.dtype), seen, out=seen)
    if mask is not None:
        seen.mul_(mask.unsqueeze(1))


def _multiply_weight(u: Tensor, seen: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> None:
    """Compute u = seen weight^T + bias, separately for each head."""
    if heads > 1:
        each, by_head = seen.unflatten(0, (heads, -1)), u.unflatten(0, (heads, -1))
        transposed = weight.unflatten(0, (heads, -1)).transpose(1, 2)
        if bias is None:
            torch.bmm(each, transposed, out=by_head)
        else:
            torch.baddbmm(bias.view(heads, 1, -1), each, transposed, out=by_head)
    elif bias is None:
        torch.mm(seen, weight.t(), out=u)
    else:
        torch.addmm(bias, seen, weight.t(), out=u)


def _multiply(d: Tensor, r: Tensor, heads: int) -> Tensor:
    """Compute d^T r of each head in float32, in split-K slices: there are many rows and few columns.

    The caller sums the slices of each head: (heads * slices, ..).
    """
    rows = len(d) // heads
    wanted = max(
        1,
        min(
            rows // heuristics.GATED_PIECE_ROWS[d.itemsize], heuristics.GATED_PIECE_NUMBERS // (d.shape[1] * r.shape[1])
        ),
    )
    n = next(n for n in range(wanted, 0, -1) if rows % n == 0)
    d, r = d.unflatten(0, (heads * n, -1)).transpose(1, 2), r.view(heads * n, rows // n, -1)
    if d.is_cuda and d.dtype != torch.float32:
        return torch.bmm(d, r, out_dtype=torch.float32)
    return torch.bmm(d.float(), r.float()).float()  # autocast would give 16 bits
