"""AttnRNN on NVIDIA GPUs from Hopper on: a cluster of blocks takes some rows of the batch through all of time.

The blocks share the weights out among them, hold them in registers and what does not fit there in shared memory, and
send what they find to each other's shared memory. The state is carried in float32; nothing waits for the host; no sum
depends on chance. The forward keeps the outputs alone. The backward takes a chunk of time after another, the last
first: batched products compute what was inside its steps, clusters walk back through them, and batched products make
the weights' gradients. In float32 the products are as exact as torch's flags say: 19 bits, or all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels import _attn_rnn_parts, _cuda, attn_rnn_cuda
from seqloom.kernels._attn_rnn_blocks import TYPES, Forward, setting
from seqloom.kernels._attn_rnn_cluster_back import Chunk
from seqloom.kernels._attn_rnn_cluster_code import LARGEST, code_for
from seqloom.kernels._attn_rnn_parts import Plan, parts, second
from seqloom.precision import autocast_dtype

MULTIPLE = 16  # of which the hidden size is one
CHUNK = 1 << 22  # numbers in one of a chunk's planes


def why_not(cell: Any, job: Job) -> str | None:
    reason = _attn_rnn_parts.why_not(cell, job, TYPES, heads=16)
    if reason is not None:
        return reason
    dtype = autocast_dtype("cuda") or job.x.dtype
    largest = LARGEST[dtype.itemsize]
    if cell.hidden_size % MULTIPLE or cell.hidden_size > largest:
        return f"it takes hidden sizes {MULTIPLE}, {2 * MULTIPLE}, .. {largest}, not {cell.hidden_size}"
    flags = (job.mask is not None, bool(job.keep), job.reset is not None)
    how = setting(cell.hidden_size, cell.heads, dtype, cell.context, cell.norm, *flags)
    kernels = (code_for(how, name, len(job.x), job.x.device) for name in ("forward", "reverse"))
    return next((reason for kernel in kernels if (reason := kernel.why_not(job.x.device)) is not None), None)


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    y, h = _Scan.apply(*parts(cell, job))
    return y, (h.to(job.state[0].dtype),)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, u: Tensor, h0: Tensor, start: Tensor | None, *own: Any) -> tuple[Tensor, Tensor]:
        ctx.plan = plan
        B, T, _ = u.shape
        x = u if attn_rnn_cuda._straight(u) else u.contiguous()
        y = (torch.empty_like if plan.lengths is None else torch.zeros_like)(u, memory_format=torch.contiguous_format)
        last = torch.empty_like(h0, memory_format=torch.contiguous_format)
        first, anew, *weights = map(attn_rnn_cuda._contiguous, (h0, start, *own))
        given = attn_rnn_cuda._shared(plan, weights, x, y) | {"h0": first, "start": anew, "last": last, "B": B, "T": T}
        given |= {"x_row": x.stride(0), "x_step": x.stride(1), "y_row": y.stride(0), "y_step": y.stride(1)}
        code_for(plan.setting, "forward", B, u.device).start(_cuda.pointers(Forward, given), B, u.device)
        ctx.save_for_backward(u, h0, start, y, *own)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        u, h0, start, y, *own = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone asks for a second derivative
            return None, *second(plan, (u, h0, start, *own), (dy, dlast))
        B, T, H = u.shape
        x, dy, du = _aligned(u), _aligned(dy.to(u.dtype)), torch.empty_like(y)
        dh = dlast.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        dstart = None if start is None else torch.zeros_like(start, memory_format=torch.contiguous_format)
        given = {"x": x, "y": y, "h0": h0, "start": start, "dy": dy, "du": du, "dh": dh, "dstart": dstart}
        given |= {"mask": plan.mask, "keep": plan.keep, "reset": plan.reset, "lengths": plan.lengths, "B": B, "T": T}
        size = min(T, max(1, CHUNK // (B * H)))
        chunk = Chunk(plan, size, given, own)
        for begin in reversed(range(0, T, size)):
            chunk.go_back(begin, min(size, T - begin))
        return None, du, dh, dstart, *chunk.gradients(own)


def _aligned(t: Tensor) -> Tensor:
    """Contiguous, from a multiple of 16 bytes."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()
