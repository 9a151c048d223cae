"""LSTM on the CPU engine."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._cpu import call, outputs, whole, why_not_cpu
from seqloom.kernels._sums import past, product, total
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice


def why_not(cell: Cell, job: Job) -> str | None:
    if cell.proj_size:
        return "the CPU engine has no projected LSTM (proj_size)"
    return why_not_cpu(cell, job) or transformed()


def not_unasked(cell: Cell, job: Job) -> str | None:
    even = job.lengths is None and job.x.dtype == torch.float32
    return "torch's own (oneDNN) is faster where all lengths are equal" if even else None


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        gx = F.linear(x, w["weight_ih"], w.get("bias_ih")).contiguous()
        h, c = (s.contiguous() for s in state)
        y, h, c = _Scan.apply(gx, h, c, w["weight_hh"].contiguous(), w.get("bias_hh"), whole(job.lengths))
        return y, (h, c)

    return run_twice(cell, job, cell.own(), fused)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gx: Tensor, h0: Tensor, c0: Tensor, U: Tensor, b: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        B, T, H = gx.shape[0], gx.shape[1], U.shape[1]
        y, c = outputs(gx, lengths, B, T, H), outputs(gx, lengths, B, T, H)
        h1, c1 = torch.empty_like(h0), torch.empty_like(c0)
        given = dict(lengths=lengths, x=gx, h0=h0, c0=c0, w=[U], b=[b])
        call("lstm", False, gx.dtype, (B, T, H), **given, y=y, c=c, h1=h1, c1=c1)
        ctx.save_for_backward(gx, h0, c0, U, b, lengths, y, c)
        return y, h1, c1

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh1: Tensor, dc1: Tensor) -> tuple[Tensor | None, ...]:
        gx, h0, c0, U, b, lengths, y, c = ctx.saved_tensors
        B, T, H = y.shape
        dy, dh1, dc1 = (g.contiguous() for g in (dy, dh1, dc1))
        d, dh0, dc0 = outputs(gx, lengths, B, T, 4 * H), torch.empty_like(h0), torch.empty_like(c0)
        given = dict(lengths=lengths, x=gx, h0=h0, c0=c0, w=[U], b=[b], y=y, c=c, dy=dy, dh1=dh1, dc1=dc1)
        call("lstm", True, gx.dtype, (B, T, H), **given, dx=d, dh0=dh0, dc0=dc0)
        dU = product(d.flatten(0, 1), past(y, h0))
        return d, dh0, dc0, dU, None if b is None else total(d), None
