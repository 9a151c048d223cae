"""AttnRNN on an NVIDIA GPU, any size and type: products by torch, what lies between them fused, a CUDA graph of both.

Six launches a step each way, recorded once for a chunk of steps and run again for every chunk. The forward keeps
the outputs alone; the backward computes what was inside a chunk again, and makes the weights' gradients chunk by chunk.
With slots the graph is of plain torch, and the states are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.kernels.cuda.attn_rnn import parts as _attn_rnn_parts
from seqloom.kernels.cuda.attn_rnn.block_code import TYPES
from seqloom.kernels.cuda.attn_rnn.chunks import Back, Onward
from seqloom.kernels.cuda.attn_rnn.parts import Plan, parts, second
from seqloom.kernels.cuda.attn_rnn.slots_chunk import SlotsBack, SlotsOnward
from seqloom.kernels.cuda.runtime.graphs import recorded

STEPS = 32  # of a chunk, where there are so many


def why_not(cell: Cell, job: ScanJob) -> str | None:
    return _attn_rnn_parts.why_not(cell, job, TYPES, heads=32, slots=True)


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    y, h = _Scan.apply(*parts(cell, job))
    return y, (h.to(job.state[0].dtype),)


def _chunk(kind: type[Any], plan: Plan, u: Tensor, *slots: int) -> tuple[Any, Callable[[], None]]:
    B, T, _ = u.shape
    steps = min(max(4, STEPS // math.prod(slots)), 1 << (T - 1).bit_length())  # a slot takes the memory of a step
    key = (kind, plan.setting, B, steps, u.device, *slots)
    return recorded(key, lambda: kind(plan.setting, B, steps, u.device, *slots))


def _left(lengths: Tensor | None, u: Tensor, steps: int) -> Tensor:
    """(chunks, B): how many steps of each chunk a row has."""
    B, T, _ = u.shape
    begins = torch.arange(0, T, steps, device=u.device).unsqueeze(1)
    ends = torch.full((B,), T, device=u.device) if lengths is None else lengths.clamp(max=T)
    return (ends - begins).clamp(0, steps).to(torch.int32)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, u: Tensor, h0: Tensor, start: Tensor | None, *own: Any) -> tuple[Tensor, Tensor]:
        ctx.plan = plan
        (B, T), m = u.shape[:2], plan.cell.slots
        chunk: Onward | SlotsOnward
        chunk, do = _chunk(Onward, plan, u) if m == 1 else _chunk(SlotsOnward, plan, u, m)
        chunk.set_weights(own, plan.mask, start)
        chunk.h.copy_(h0)
        left = _left(plan.lengths, u, chunk.steps)
        kept = torch.empty(B, T, *h0.shape[1:], dtype=chunk.y.dtype, device=u.device)
        for k, begin in enumerate(range(0, T, chunk.steps)):
            n = min(chunk.steps, T - begin)
            chunk.take(plan, u, left[k], begin, n)
            do()
            kept[:, begin : begin + n].copy_(chunk.y[:n].transpose(0, 1))
        ctx.save_for_backward(u, h0, start, kept, *own)
        return kept if m == 1 else kept.sum(2).to(u.dtype), chunk.h.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        u, h0, start, kept, *own = read_saved(ctx)
        if torch.is_grad_enabled():  # someone asks for a second derivative
            return None, *second(plan, (u, h0, start, *own), (dy, dlast))
        T, m = u.shape[1], plan.cell.slots
        chunk: Back | SlotsBack
        chunk, do = _chunk(Back, plan, u) if m == 1 else _chunk(SlotsBack, plan, u, m)
        chunk.set_weights(own, plan.mask, start)
        chunk.clear(dlast)
        left = _left(plan.lengths, u, chunk.steps)
        du = torch.empty_like(u, memory_format=torch.contiguous_format)
        for k, begin in reversed(list(enumerate(range(0, T, chunk.steps)))):
            n = min(chunk.steps, T - begin)
            chunk.take(plan, u, left[k], begin, n)
            chunk.take_back(h0, kept, dy, begin, n)
            do()
            du[:, begin : begin + n].copy_(chunk.du[:n].transpose(0, 1))
        weights = (None if w is None else d.to(w.dtype, copy=True) for w, d in zip(own, chunk.gradients, strict=True))
        return None, du, chunk.dh.clone(), None if start is None else chunk.dstart.clone(), *weights
