"""GRU on the CPU engine."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._cpu import call, not_when_large, outputs, scratch, whole, why_not_cpu
from seqloom.kernels._sums import past, product, total
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice


def why_not(cell: Cell, job: Job) -> str | None:
    if not cell.reset_after:
        return "the CPU engine applies the reset gate after the product (reset_after=True)"
    return why_not_cpu(cell, job) or transformed()


not_unasked = not_when_large


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        gx, h = F.linear(x, w["weight_ih"], w.get("bias_ih")).contiguous(), state[0].contiguous()
        y, h = _Scan.apply(gx, h, w["weight_hh"].contiguous(), w.get("bias_hh"), whole(job.lengths))
        return y, (h,)

    return run_twice(cell, job, cell.own(), fused)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gx: Tensor, h0: Tensor, U: Tensor, b: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        B, T, H = gx.shape[0], gx.shape[1], U.shape[1]
        y, h1 = outputs(gx, lengths, B, T, H), torch.empty_like(h0)
        call("gru", False, gx.dtype, (B, T, H), lengths=lengths, x=gx, h0=h0, w=[U], b=[b], y=y, h1=h1)
        ctx.save_for_backward(gx, h0, U, b, lengths, y)
        return y, h1

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh1: Tensor) -> tuple[Tensor | None, ...]:
        gx, h0, U, b, lengths, y = ctx.saved_tensors
        B, T, H = y.shape
        dy, dh1 = dy.contiguous(), dh1.contiguous()
        (d,), dh0 = scratch(gx, lengths, (B, T, 4 * H)), torch.empty_like(h0)
        given = dict(lengths=lengths, x=gx, h0=h0, w=[U], b=[b], y=y, dy=dy, dh1=dh1)
        call("gru", True, gx.dtype, (B, T, H), **given, dx=d, dh0=dh0)
        dU = product(d[..., : 3 * H].flatten(0, 1), past(y, h0))
        db = None if b is None else total(d[..., : 3 * H])
        dgx = torch.cat([d[..., : 2 * H], d[..., 3 * H :]], -1)  # the engine leaves r dn before dn
        return dgx, dh0, dU, db, None
