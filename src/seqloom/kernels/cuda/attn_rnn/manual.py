"""AttnRNN with its backward written by hand, in plain torch: for every device and type, and any number of slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.cuda.attn_rnn import walk
from seqloom.kernels.fused import run_fused, why_not_fused


def why_not(cell: Cell, job: ScanJob) -> str | None:
    if job.dt is not None:
        return "the hand-written backward knows no timespans"
    if any(t is not None and t.requires_grad for t in (job.mask, *job.keep)):
        return "the hand-written backward gives dropout masks no gradient"
    if autocast_dtype(job.x.device.type):
        return "the hand-written backward does not run under autocast"
    if job.x.shape[0] == 0:
        return "the batch is empty"
    return why_not_fused()


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        u = F.linear(x, w["weight_u"], w["bias_u"]) if "weight_u" in w else x
        start = None if job.reset is None else bind_weights(cell, w).start(x)[0]
        y, h = _Scan.apply(cell, job, start, u, state[0], *(w.get(name) for name in WEIGHT_NAMES))
        return y, (h,)

    return run_fused(cell, job, cell.own_parameters(), fused)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cell: Cell, job: ScanJob, start: Tensor | None, u: Tensor, h0: Tensor, *own: Any
    ) -> tuple[Tensor, Tensor]:
        kept, h = walk.forth(cell, job, start, u, h0, own)
        ctx.cell, ctx.job = cell, replace(job, x=u.detach(), state=())
        ctx.save_for_backward(start, u, h0, kept, *own)
        return walk.output(cell, kept), h.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        start, u, h0, kept, *own = read_saved(ctx)
        return None, None, *walk.back(ctx.cell, ctx.job, (start, u, h0), kept, (dy, dlast), own)
