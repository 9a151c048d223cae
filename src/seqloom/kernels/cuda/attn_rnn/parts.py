"""What AttnRNN's kernels for GPUs are given, in the kernel's type, and the reference for second derivatives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import loop
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.cuda.attn_rnn.block_code import Setting, setting
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.fused import why_not_fused


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything but what has a gradient."""

    cell: Any
    setting: Setting
    lengths: Tensor | None
    mask: Tensor | None
    keep: Tensor | None
    reset: Tensor | None


def why_not(cell: Any, job: ScanJob, types: Collection[torch.dtype], heads: int, slots: bool = False) -> str | None:
    """What every kernel of AttnRNN for a GPU asks for; `slots`: it has several."""
    dtype = autocast_dtype("cuda") or job.x.dtype
    if not job.x.is_cuda:
        return "it is for CUDA tensors"
    if dtype not in types:
        names = " or ".join(str(t).removeprefix("torch.") for t in types)
        return f"it computes in {names}, not {str(dtype).removeprefix('torch.')}"
    if cell.slots > 1 and not slots:
        return "it has one slot"
    if cell.heads > heads:
        return f"it takes up to {heads} heads, not {cell.heads}"
    if job.x.shape[0] == 0 or job.x.shape[1] == 0:
        return "the batch is empty"
    return why_not_fused() or launch.why_not(job.x.device)


def parts(cell: Any, job: ScanJob) -> tuple[Any, ...]:
    """The plan, u, h0 and the start of a reset in float32, and the weights in the order of WEIGHT_NAMES."""
    dtype, w = autocast_dtype("cuda") or job.x.dtype, cell.own_parameters()
    u = (F.linear(job.x, w["weight_u"], w["bias_u"]) if "weight_u" in w else job.x).to(dtype)
    start = cell.start(job.x)[0].float() if job.reset is not None else None
    keep = job.keep[0].to(dtype).contiguous() if job.keep else None
    mask = job.mask.to(dtype).contiguous() if job.mask is not None else None
    reset = job.reset.contiguous() if job.reset is not None else None
    lengths = job.lengths.to(torch.int64).contiguous() if job.lengths is not None else None
    flags = (mask is not None, keep is not None, reset is not None)
    how = setting(cell.hidden_size, cell.heads, dtype, cell.context, cell.norm, *flags)
    own = [w[name].to(dtype) if name in w else None for name in WEIGHT_NAMES]
    return Plan(cell, how, lengths, mask, keep, reset), u, job.state[0].float(), start, *own


def second(plan: Plan, inputs: Sequence[Tensor | None], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients by the loop, which have gradients themselves."""
    u, h0, start, *own = inputs
    assert u is not None and h0 is not None
    with torch.enable_grad(), torch.autocast(u.device.type, enabled=False):
        view: Cell = bind_weights(plan.cell, {n: w for n, w in zip(WEIGHT_NAMES, own, strict=True) if w is not None})
        view.input_size = plan.cell.hidden_size  # u is projected already
        if start is not None:
            view.start = lambda x: (start.to(x.dtype),)  # type: ignore[method-assign]
        keep = () if plan.keep is None else (plan.keep,)
        y, (h,) = loop.run(view, ScanJob(u, (h0.to(u.dtype),), plan.lengths, plan.reset, None, plan.mask, keep))
        wanted = [t for t in inputs if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad([y, h.float()], wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in inputs]
