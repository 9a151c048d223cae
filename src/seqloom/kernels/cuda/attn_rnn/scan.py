"""AttnRNN over time on a GPU, forward and backward: what its fused kernels have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty_like
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import fused, heuristics, loop
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.cuda.attn_rnn.backward import Chunk, align, name_weights
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNInputs, AttnRNNSetting, find_setting
from seqloom.kernels.cuda.runtime import launch


@dataclass(frozen=True, eq=False)
class Tier:
    """One way to divide the work over a GPU."""

    find_code: Callable[
        [AttnRNNSetting, str, int, torch.device], Any
    ]  # of the kernel "forward" or "reverse", for B rows
    chunk: Callable[[AttnRNNInputs, int, Tensor], Chunk]  # arguments: inputs, number of steps, a tensor like u
    count_steps: Callable[[Tensor], int]  # of u that the backward takes at a time
    make_states: Callable[[Tensor], Tensor | None] = lambda y: y  # saved for the backward; y if it is enough
    gives_end: bool = False  # whether the forward kernel writes the last state in the type of the outputs, too
    takes_strides: bool = False  # whether the backward pass takes inputs and outputs in any order of rows and steps


def why_not(
    cell: Cell,
    job: ScanJob,
    types: Collection[torch.dtype],
    heads: int = 16,
    largest: int | None = None,
    slots: int = 1,
) -> str | None:
    """Return why AttnRNN's GPU kernels cannot run this; None if they can.

    Args:
        types: Types that the kernel computes in.
        heads: Most heads.
        largest: Largest hidden size, heads padded to whole tiles; with slots a multiple of HIDDEN_MULTIPLE. None: any.
        slots: Most slots.
    """
    dtype, multiple = autocast_dtype("cuda") or job.x.dtype, heuristics.HIDDEN_MULTIPLE
    if not job.x.is_cuda:
        return "it is for CUDA tensors"
    if dtype not in types:
        names = " or ".join(str(t).removeprefix("torch.") for t in types)
        return f"it computes in {names}, not {str(dtype).removeprefix('torch.')}"
    if cell.slots > 1 and slots == 1:
        return "it has one slot"
    if cell.heads > heads:
        return f"it takes up to {heads} heads, not {cell.heads}"
    if job.x.shape[0] == 0 or job.x.shape[1] == 0:
        return "the batch is empty"
    reason = fused.why_not_fused() or launch.why_not(job.x.device)
    if reason is None and largest and slots > 1 and (cell.hidden_size % multiple or cell.hidden_size > largest):
        return f"it takes hidden sizes {multiple}, {2 * multiple}, .. {largest}, not {cell.hidden_size}"
    if reason is None and largest and (padded := cell.heads * pad_head(cell)) > largest:
        as_padded = f" (padded {padded})" if padded > cell.hidden_size else ""
        return f"it takes hidden sizes up to {largest}, not {cell.hidden_size}{as_padded}"
    return reason


def pad_head(cell: Cell) -> int:
    """Return the units of a head with which all heads have whole tiles."""
    multiple = heuristics.HIDDEN_MULTIPLE // math.gcd(heuristics.HIDDEN_MULTIPLE, cell.heads)
    return -(-cell.hidden_size // cell.heads // multiple) * multiple


def why_not_code(tier: Tier, cell: Cell, job: ScanJob) -> str | None:
    """Return why the kernels of this tier cannot run on the job's device."""
    setting, device = read_padded(cell, job), job.x.device
    codes = (tier.find_code(setting, name, len(job.x), device) for name in ("forward", "reverse"))
    return next((reason for code in codes if (reason := code.why_not(device)) is not None), None)


def read_setting(cell: Cell, job: ScanJob) -> AttnRNNSetting:
    flags = (job.mask is not None, bool(job.keep), job.reset is not None)
    dtype = autocast_dtype("cuda") or job.x.dtype
    return find_setting(cell.hidden_size, cell.heads, dtype, cell.context, cell.norm, *flags)


def read_padded(cell: Cell, job: ScanJob) -> AttnRNNSetting:
    """Return the setting of the cell with heads of whole tiles."""
    setting, head = read_setting(cell, job), pad_head(cell)
    real = cell.hidden_size // cell.heads
    if head == real:
        return setting
    own = (setting.dtype, setting.context, setting.norm, setting.mask, setting.keep, setting.reset)
    return find_setting(cell.heads * head, cell.heads, *own, real)


def run(tier: Tier, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    inputs, u, h0, start, *weights = prepare(cell, job)
    setting = read_padded(cell, job)
    if not setting.real_head:
        y, h = _TierScan.apply(tier, inputs, u, h0, start, *weights)
        return y, (h.to(job.state[0].dtype),)
    u, h0, start, mask, keep = (
        None if t is None else pad_units(t, setting) for t in (u, h0, start, inputs.mask, inputs.keep)
    )
    weights = [None if w is None else pad_weight(w, setting) for w in weights]
    y, h = _TierScan.apply(tier, replace(inputs, setting=setting, mask=mask, keep=keep), u, h0, start, *weights)
    return cut_units(y, setting), (cut_units(h, setting).to(job.state[0].dtype),)


def pad_units(t: Tensor, setting: AttnRNNSetting) -> Tensor:
    """Return a tensor (.., H) with zeros at the end of each head."""
    D = setting.real_head
    return F.pad(t.unflatten(-1, (-1, D)), (0, setting.hidden // setting.heads - D)).flatten(-2)


def pad_weight(w: Tensor, setting: AttnRNNSetting) -> Tensor:
    """Return a bias (H,), or a weight (H, H) or (H, 2 H), for padded heads."""
    w = pad_units(w, setting)
    return w if w.dim() == 1 else pad_units(w.t(), setting).t().contiguous()


def cut_units(t: Tensor, setting: AttnRNNSetting) -> Tensor:
    """Return a tensor (.., H) without what `pad_units` adds."""
    return t.unflatten(-1, (setting.heads, -1))[..., : setting.real_head].flatten(-2)


def cut_weight(w: Tensor, setting: AttnRNNSetting) -> Tensor:
    """Return a bias or weight without what `pad_weight` adds."""
    w = w.unflatten(-1, (-1, setting.hidden // setting.heads))[..., : setting.real_head].flatten(-2)
    return w if w.dim() == 1 else cut_units(w.t(), setting).t().contiguous()


def prepare(cell: Cell, job: ScanJob) -> tuple[Any, ...]:
    """Return the inputs, u, h0 and the start of a reset in float32, and the weights in the order of WEIGHT_NAMES."""
    dtype, w = autocast_dtype("cuda") or job.x.dtype, cell.own_parameters()
    u = cell.project(job.x).to(dtype)
    start = cell.start(job.x)[0].float() if job.reset is not None else None
    keep = job.keep[0].to(dtype).contiguous() if job.keep else None
    mask = job.mask.to(dtype).contiguous() if job.mask is not None else None
    reset = job.reset.contiguous() if job.reset is not None else None
    lengths = job.lengths.to(torch.int64).contiguous() if job.lengths is not None else None
    weights = [w[name].to(dtype) if name in w else None for name in WEIGHT_NAMES]
    return (
        AttnRNNInputs(cell, read_setting(cell, job), lengths, mask, keep, reset),
        u,
        job.state[0].float(),
        start,
        *weights,
    )


def differentiate(
    inputs: AttnRNNInputs, tensors: Sequence[Tensor | None], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Compute the gradients by the loop, so that they have gradients themselves."""
    setting, like = inputs.setting, tensors[0]
    assert like is not None

    def cut(t: Tensor | None, both: bool = False) -> Any:  # noqa: ANN401  # None stays None
        if t is None or not setting.real_head:
            return t
        if both and t.dim() == 2:
            t = cut_units(t.t(), setting).t()
        return t.unflatten(-1, (-1, setting.hidden // setting.heads))[..., : setting.real_head].flatten(-2)

    with torch.enable_grad(), torch.autocast(like.device.type, enabled=False):
        u, h0, start, *weights = (*map(cut, tensors[:3]), *(cut(w, both=True) for w in tensors[3:]))
        own = {n: w for n, w in zip(WEIGHT_NAMES, weights, strict=True) if w is not None}
        view: Cell = bind_weights(inputs.cell, own)
        view.input_size = inputs.cell.hidden_size  # u is projected already
        vars(view)["input_norm"] = False
        if start is not None:
            view.start = lambda x: (start.to(x.dtype),)  # type: ignore[method-assign]
        keep = () if inputs.keep is None else (cut(inputs.keep),)
        job = ScanJob(u, (h0.to(u.dtype),), inputs.lengths, inputs.reset, None, cut(inputs.mask), keep)
        y, (h,) = loop.run(view, job)
        return fused.differentiate(tensors, [y, h.float()], [cut(d) for d in grads], True, True)


class _TierScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        tier: Tier,
        inputs: AttnRNNInputs,
        u: Tensor,
        h0: Tensor,
        start: Tensor | None,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.tier, ctx.inputs = tier, inputs
        B, T, _ = u.shape
        x = u if is_aligned(u) else u.contiguous()
        y = (empty_like if inputs.lengths is None else torch.zeros_like)(u, memory_format=torch.contiguous_format)
        last = empty_like(h0, memory_format=torch.contiguous_format)
        states = tier.make_states(y)
        values = read_options(inputs) | {"w": name_weights(weights), "x": x, "y": y, "last": last, "states": states}
        values |= {"h0": h0.contiguous(), "start": None if start is None else start.contiguous(), "B": B, "T": T}
        values |= {"x_row": x.stride(0), "x_step": x.stride(1), "y_row": y.stride(0), "y_step": y.stride(1)}
        code = tier.find_code(inputs.setting, "forward", B, u.device)
        code.start(code.pack(values), B, u.device)
        ctx.save_for_backward(u, h0, start, states, *weights)
        return y, last

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        dy: Tensor,
        dlast: Tensor,
    ) -> tuple[Tensor | None, ...]:
        inputs: AttnRNNInputs = ctx.inputs
        u, h0, start, states, *weights = read_saved(ctx)
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, None, *differentiate(inputs, (u, h0, start, *weights), (dy, dlast))
        B, T, _ = u.shape
        x, dy = align(u), align(dy.to(u.dtype))
        du = empty_like(x)
        dh = dlast.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        dstart = None if start is None else torch.zeros_like(start, memory_format=torch.contiguous_format)
        values = read_options(inputs) | {"x": x, "y": states, "h0": h0.contiguous(), "B": B, "T": T}
        values |= {"start": None if start is None else start.contiguous()}
        values |= {"dy": dy, "du": du, "dh": dh, "dstart": dstart}
        size = ctx.tier.count_steps(u)
        chunk: Chunk = ctx.tier.chunk(inputs, size, x)
        chunk.load(values, weights)
        for begin in reversed(range(0, T, size)):
            chunk.go_back(begin, min(size, T - begin))
        return None, None, du, dh, dstart, *chunk.gradients(weights)


def read_options(inputs: AttnRNNInputs) -> dict[str, Any]:
    """Return the inputs without gradients by the names of the kernels' arguments."""
    return {"mask": inputs.mask, "keep": inputs.keep, "reset": inputs.reset, "lengths": inputs.lengths}


def is_aligned(t: Tensor) -> bool:
    """Return whether every step begins at a multiple of 16 bytes."""
    return t.stride(2) == 1 and t.data_ptr() % 16 == 0 and t.stride(0) % 8 == 0 and t.stride(1) % 8 == 0
