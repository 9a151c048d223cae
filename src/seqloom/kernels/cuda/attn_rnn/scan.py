"""AttnRNN over time on a GPU, forward and backward: the shared parts of its fused kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty_like
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import fused, heuristics, loop
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.autograd import Call, Gradients, Prepared, run_prepared
from seqloom.kernels.cuda.attn_rnn.backward import Chunk, align, name_weights
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNInputs, AttnRNNSetting, find_setting
from seqloom.kernels.cuda.runtime import launch


class AttnRNNWeights(NamedTuple):
    """The weights of a cell by its names; None for those that it lacks."""

    weight_q: Any
    bias_q: Any
    weight_o: Any
    bias_o: Any
    weight_g: Any
    bias_g: Any
    scale_n: Any = None
    bias_n: Any = None
    weight_u: Any = None
    bias_u: Any = None

    @property
    def recurrent(self) -> tuple[Any, ...]:
        """The weights of the recurrence, in the order of WEIGHT_NAMES."""
        return self[: len(WEIGHT_NAMES)]


@dataclass(frozen=True, eq=False)
class Tier:
    """One way to divide the work among blocks of a GPU."""

    find_code: Callable[
        [AttnRNNSetting, str, int, torch.device], Any
    ]  # returns the kernel "forward" or "reverse" for B rows
    chunk: Callable[[AttnRNNInputs, int, Tensor], Chunk]  # arguments: inputs, number of steps, a tensor like u
    count_steps: Callable[[Tensor], int]  # returns the number of steps of u per chunk of the backward pass
    # Allocates the states that are saved for the backward pass; y if it suffices.
    make_states: Callable[[Tensor], Tensor | None] = lambda y: y
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
        heads: Largest number of heads.
        largest: Largest hidden size, with heads padded to full tiles; with slots a multiple of HIDDEN_MULTIPLE. None:
            any.
        slots: Largest number of slots.
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
    """Return the units per head with which every head fills its tiles."""
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
    """Return the setting of the cell with heads that fill their tiles."""
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
        y, h = run_scan(TierScan(tier, inputs), u, h0, start, *weights)
        return y, (h.to(job.state[0].dtype),)
    mask, keep = (None if t is None else pad_units(t, setting) for t in (inputs.mask, inputs.keep))
    start = None if start is None else pad_units(start, setting)
    weights = [None if w is None else pad_weight(w, setting) for w in weights]
    padded = TierScan(tier, replace(inputs, setting=setting, mask=mask, keep=keep))
    y, h = run_scan(padded, pad_units(u, setting), pad_units(h0, setting), start, *weights)
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
    """Return the inputs, u, h0 and the state after a reset in float32, and the weights in the order of WEIGHT_NAMES."""
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


def differentiate(inputs: AttnRNNInputs, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
    """Compute the gradients with the loop, so that they are differentiable."""
    setting, like = inputs.setting, call.x
    first = (call.x, *call.states, call.starts[0] if call.starts else None)
    tensors = *first, *call.weights

    def cut(t: Tensor | None, both: bool = False) -> Any:  # noqa: ANN401  # None stays None
        if t is None or not setting.real_head:
            return t
        if both and t.dim() == 2:
            t = cut_units(t.t(), setting).t()
        return t.unflatten(-1, (-1, setting.hidden // setting.heads))[..., : setting.real_head].flatten(-2)

    with torch.enable_grad(), torch.autocast(like.device.type, enabled=False):
        u, h0, start, *weights = (*map(cut, first), *(cut(w, both=True) for w in call.weights))
        own = {n: w for n, w in zip(WEIGHT_NAMES, weights, strict=True) if w is not None}
        view: Cell = bind_weights(inputs.cell, own)
        view.input_size = inputs.cell.hidden_size  # u is projected already
        vars(view)["input_norm"] = False
        if start is not None:
            view.start = lambda x: (start.to(x.dtype),)  # type: ignore[method-assign]
        keep = () if inputs.keep is None else (cut(inputs.keep),)
        job = ScanJob(u, (h0.to(u.dtype),), inputs.lengths, inputs.reset, None, cut(inputs.mask), keep)
        y, (h,) = loop.run(view, job)
        h = h.to(torch.promote_types(h.dtype, torch.float32))
        found = fused.differentiate(tensors, [y, h], [cut(d) for d in grads], True, True)
    du, dh, dstart, *dweights = found
    return Gradients(du, (dh,), dweights, (dstart,) if call.starts else ())


class Saved(NamedTuple):
    """What a backward pass needs besides the call: the states after all steps, (B, T, ..)."""

    states: Tensor


class TierScan(NamedTuple):
    """The passes of a projected input (`Prepared` of `../../autograd.py`).

    Attributes:
        tier: How the work is divided among blocks.
        inputs: The inputs without gradients.
    """

    tier: Tier
    inputs: AttnRNNInputs

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], Saved]:
        """Return the outputs (B, T, H), the last state in float32, and what is saved."""
        tier, inputs, u, (h0,) = self.tier, self.inputs, call.x, call.states
        B, T, _ = u.shape
        x = u if is_aligned(u) else u.contiguous()
        y = (empty_like if inputs.lengths is None else torch.zeros_like)(u, memory_format=torch.contiguous_format)
        last = empty_like(h0, memory_format=torch.contiguous_format)
        states = tier.make_states(y)
        values = read_options(inputs) | {"w": name_weights(call.weights), "x": x, "y": y, "last": last}
        values |= {"states": states, "h0": h0.contiguous(), "start": _read_start(call), "B": B, "T": T}
        values |= {"x_row": x.stride(0), "x_step": x.stride(1), "y_row": y.stride(0), "y_step": y.stride(1)}
        code = tier.find_code(inputs.setting, "forward", B, u.device)
        code.start(code.pack(values), B, u.device)
        return (y, last), Saved(y if states is None else states)

    def backward(self, call: Call, saved: Saved, grads: Sequence[Tensor | None], needs: Gradients) -> Gradients:
        """Return the gradients, chunk by chunk of time."""
        inputs, u, (h0,), (dy, dlast) = self.inputs, call.x, call.states, grads
        B, T, _ = u.shape
        x, start = align(u), _read_start(call)
        dy = torch.zeros_like(x) if dy is None else align(dy.to(u.dtype))
        du, dh = empty_like(x), torch.zeros_like(h0, memory_format=torch.contiguous_format)
        if dlast is not None:
            dh.copy_(dlast)
        dstart = None if start is None else torch.zeros_like(start)
        values = read_options(inputs) | {"x": x, "y": saved.states, "h0": h0.contiguous(), "B": B, "T": T}
        values |= {"start": start, "dy": dy, "du": du, "dh": dh, "dstart": dstart}
        size = self.tier.count_steps(u)
        chunk: Chunk = self.tier.chunk(inputs, size, x)
        chunk.load(values, call.weights)
        for begin in reversed(range(0, T, size)):
            chunk.go_back(begin, min(size, T - begin))
        return Gradients(du, (dh,), chunk.gradients(call.weights), () if dstart is None else (dstart,))

    def differentiate(self, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
        """Return the gradients by the loop."""
        return differentiate(self.inputs, call, grads)


def _read_start(call: Call) -> Tensor | None:
    """Return the state after a reset, in order; None without resets."""
    return call.starts[0].contiguous() if call.starts else None


def run_scan(scan: Prepared, u: Tensor, h0: Tensor, start: Tensor | None, *weights: Tensor | None) -> tuple[Any, ...]:
    """Run a scan of a projected input; return the outputs and the last state."""
    starts, tensors = () if start is None else (start,), (u, h0, start, *weights)
    train = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    train = train and not fused.is_traced()  # a trace records torch's operators
    return run_prepared(scan, Call(u, (h0,), weights, starts, train=train))


def read_options(inputs: AttnRNNInputs) -> dict[str, Any]:
    """Return the inputs without gradients by the names of the kernels' arguments."""
    return {"mask": inputs.mask, "keep": inputs.keep, "reset": inputs.reset, "lengths": inputs.lengths}


def is_aligned(t: Tensor) -> bool:
    """Return whether every step is aligned to 16 bytes."""
    return t.stride(2) == 1 and t.data_ptr() % 16 == 0 and t.stride(0) % 8 == 0 and t.stride(1) % 8 == 0
