"""The plain RNN on the CPU engine."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._cpu import call, not_when_large, outputs, whole, why_not_cpu
from seqloom.kernels._sums import past, product, total
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice


def why_not(cell: Cell, job: Job) -> str | None:
    if cell.nonlinearity not in ("tanh", "relu"):
        return f"the CPU engine knows tanh and relu, not {cell.nonlinearity}"
    return why_not_cpu(cell, job) or transformed()


not_unasked = not_when_large


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        gx, h = F.linear(x, w["weight_ih"], w.get("bias_ih")).contiguous(), state[0].contiguous()
        y, h = _Scan.apply(
            gx, h, w["weight_hh"].contiguous(), w.get("bias_hh"), whole(job.lengths), int(cell.nonlinearity == "relu")
        )
        return y, (h,)

    return run_twice(cell, job, cell.own(), fused)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gx: Tensor, h0: Tensor, U: Tensor, b: Tensor | None, lengths: Tensor | None, relu: int
    ) -> tuple[Tensor, Tensor]:
        B, T, H = gx.shape[0], gx.shape[1], U.shape[1]
        y, h1 = outputs(gx, lengths, B, T, H), torch.empty_like(h0)
        call("rnn", False, gx.dtype, (B, T, H), lengths=lengths, x=gx, h0=h0, w=[U], b=[b], y=y, h1=h1, norm=relu)
        ctx.save_for_backward(gx, h0, U, b, lengths, y)
        ctx.relu = relu
        return y, h1

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh1: Tensor) -> tuple[Tensor | None, ...]:
        gx, h0, U, b, lengths, y = ctx.saved_tensors
        B, T, H = y.shape
        dy, dh1 = dy.contiguous(), dh1.contiguous()
        d, dh0 = outputs(gx, lengths, B, T, H), torch.empty_like(h0)
        given = dict(lengths=lengths, x=gx, h0=h0, w=[U], b=[b], y=y, dy=dy, dh1=dh1, norm=ctx.relu)
        call("rnn", True, gx.dtype, (B, T, H), **given, dx=d, dh0=dh0)
        dU = product(d.flatten(0, 1), past(y, h0))
        db = None if b is None else total(d)
        return d, dh0, dU, db, None, None
