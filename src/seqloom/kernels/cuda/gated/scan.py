"""A gated cell over time on a GPU: the same lines for every one, so that a cell is its pointwise text and its names.

A block, or a cluster of blocks, takes some rows of the batch through all of time and holds the weights in registers and
shared memory; what does not fit there comes from the cache in every step. The state is carried in float32; nothing
waits for the host; no sum depends on chance. The forward keeps the states alone, and the spread of what is normalised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import loop
from seqloom.kernels.cuda.gated.backward import go_back
from seqloom.kernels.cuda.gated.code import LARGEST, MULTIPLE, TYPES, Kind, Setting
from seqloom.kernels.cuda.gated.grid import as_taken, code_for
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.launch import record
from seqloom.kernels.fused import why_not_fused

OWN = ("weight", "bias", "scale", "scale_c", "bias_c")
NAMES = ("weight_hh", "bias_hh", "scale_hh", "scale_c", "bias_c")  # as cells have them, or have not
CUDNN = 128  # units up to which torch's own is fast in fp16
WIDE, MANY = 512, 128  # units and rows above which its large products are faster than weights that leave the chip
NARROW = 448  # units up to which clusters are faster than groups of more blocks

Forward = record(
    "Forward",
    [
        *OWN,
        *("x", "keep_0", "keep_1", "first_0", "first_1", "start_0", "start_1", "mask", "reset", "lengths"),
        *("y", "c", "last_0", "last_1", "spread"),
        *(("B", ctypes.c_int), ("T", ctypes.c_int)),
    ],
)


def why_not(kind: Kind, cell: Cell, job: ScanJob, grid: bool = False) -> str | None:
    dtype, H = autocast_dtype("cuda") or job.x.dtype, cell.hidden_size
    if not job.x.is_cuda:
        return "it is for CUDA tensors"
    if dtype not in TYPES:
        return f"it computes in bfloat16 or float16, not {str(dtype).removeprefix('torch.')}"
    if H % MULTIPLE or H > LARGEST:
        return f"it takes hidden sizes {MULTIPLE}, {2 * MULTIPLE}, .. {LARGEST}, not {H}"
    if any(t is not None and t.requires_grad for t in (job.mask, *job.keep)):
        return "it gives dropout masks no gradient"
    if job.x.shape[0] == 0 or job.x.shape[1] == 0:
        return "the batch is empty"
    reason = why_not_fused() or launch.why_not(job.x.device)
    if reason is not None:
        return reason
    how = Setting(kind, H, dtype, job.mask is not None, bool(job.keep), job.reset is not None, grid)
    kernels = (code_for(how, name, len(job.x), job.x.device) for name in ("forward", "reverse"))
    return next((reason for kernel in kernels if (reason := kernel.why_not(job.x.device)) is not None), None)


def why_not_auto(kind: Kind, cell: Cell, job: ScanJob, grid: bool = False) -> str | None:
    """Where torch's own is the faster one, or the other of ours, as it was on an H200."""
    dtype, H = autocast_dtype("cuda") or job.x.dtype, cell.hidden_size
    if job.is_plain and not (kind.norm or kind.memory):  # all that torch's own takes
        if H <= CUDNN and dtype == torch.float16:
            return f"torch's own (cuDNN) is fast in float16 up to {CUDNN} units"
        if H > WIDE and len(job.x) > MANY:
            return f"torch's own is faster above {WIDE} units and {MANY} rows"
    if grid:
        return f"{cell.name}_cuda is faster up to {NARROW} units" if H <= NARROW else None
    leaves = H > NARROW and why_not(kind, cell, job, grid=True) is None
    return f"{cell.name}_grid is faster above {NARROW} units" if leaves else None


def run(kind: Kind, cell: Cell, job: ScanJob, grid: bool = False) -> tuple[Tensor, State]:
    dtype, w = autocast_dtype(job.x.device.type) or job.x.dtype, cell.own_parameters()
    start = cell.start(job.x) if job.reset is not None else (None,) * kind.states
    how = Setting(kind, cell.hidden_size, dtype, job.mask is not None, bool(job.keep), job.reset is not None, grid)
    asked = {
        "lengths": None if job.lengths is None else job.lengths.to(torch.int64).contiguous(),
        "reset": None if job.reset is None else job.reset.contiguous(),
        "mask": None if job.mask is None else job.mask.to(dtype).contiguous(),
        **{f"keep_{i}": k.to(dtype).contiguous() for i, k in enumerate(job.keep)},
    }
    own = (cell.project(job.x), *(w.get(name) for name in NAMES))
    typed = (None if t is None else t.to(dtype).contiguous() for t in own)
    carried = (None if t is None else t.float().contiguous() for t in (*job.state, *start))
    y, *last = _Scan.apply(Plan(cell, how, asked), *typed, *carried)
    return y, tuple(s.to(t.dtype) for s, t in zip(last, job.state, strict=True))


@dataclass(frozen=True, eq=False)
class Plan:
    """What has no gradient."""

    cell: Cell
    setting: Setting
    asked: dict[str, Tensor | None]


class _Scan(torch.autograd.Function):
    """x, weights, states, starts -> outputs, last states."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, *given: Any) -> tuple[Tensor, ...]:
        kind, H = plan.setting.kind, plan.setting.hidden
        own, first, start = parted(given, kind.states)
        (B, T), train = x.shape[:2], any(ctx.needs_input_grad)
        y = (x.new_empty if plan.asked["lengths"] is None else x.new_zeros)(B, T, H)
        c = torch.empty_like(y) if train and kind.states > 1 else None
        norms = kind.gates * kind.norm + kind.memory
        spread = x.new_empty(B, T, norms, 2, dtype=torch.float32) if train and norms else None
        last = [torch.empty_like(s) for s in first]
        known = named(own, first, start) | plan.asked | {"x": x, "y": y, "c": c, "spread": spread, "B": B, "T": T}
        known |= {f"last_{i}": s for i, s in enumerate(last)} | {
            "weight": as_taken(plan.setting, own[0].view(kind.gates, H, H))
        }
        code_for(plan.setting, "forward", B, x.device).start(launch.pointers(Forward, known), B, x.device)
        ctx.plan = plan
        ctx.save_for_backward(x, y, c, spread, *given)
        return y, *last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *dlast: Tensor) -> tuple[Tensor | None, ...]:
        x, y, c, spread, *given = read_saved(ctx)
        if torch.is_grad_enabled():  # someone asks for a second derivative
            return None, *_second(ctx.plan, (x, *given), (dy, *dlast))
        known = (
            named(*parted(given, ctx.plan.setting.kind.states))
            | ctx.plan.asked
            | {"x": x, "y": y, "c": c, "spread": spread}
        )
        known |= {"dy": dy.to(x.dtype).contiguous()}
        return None, *go_back(ctx.plan.setting, known, dlast)


def parted(given: Sequence[Any], states: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The weights, the first states, and where a reset begins."""
    k = len(OWN)
    return given[:k], given[k : k + states], given[k + states :]


def named(own: Sequence[Any], first: Sequence[Any], start: Sequence[Any]) -> dict[str, Any]:
    """By the names that the kernels have for them."""
    states = {f"{name}_{i}": s for name, part in (("first", first), ("start", start)) for i, s in enumerate(part)}
    return dict(zip(OWN, own, strict=True)) | states


def _second(plan: Plan, inputs: Sequence[Tensor | None], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients by the loop, which have gradients themselves."""
    x, asked = inputs[0], plan.asked
    own, first, start = parted(inputs[1:], plan.setting.kind.states)
    assert x is not None
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        view = bind_weights(plan.cell, {n: w for n, w in zip(NAMES, own, strict=True) if w is not None})
        view.project = lambda x: x  # type: ignore[method-assign]  # it is projected already
        view.start = lambda x: tuple(s.to(x.dtype) for s in start)  # type: ignore[method-assign]
        keep = tuple(t for name, t in asked.items() if name.startswith("keep") and t is not None)
        state = tuple(s.to(x.dtype) for s in first)
        y, last = loop.run(view, ScanJob(x, state, asked["lengths"], asked["reset"], None, asked["mask"], keep))
        wanted = [t for t in inputs if t is not None and t.requires_grad]
        ends = [y, *(s.float() for s in last)]
        found = iter(torch.autograd.grad(ends, wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in inputs]
