"""AttnRNN on the CPU engine."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._cpu import call, outputs, scratch, whole, why_not_cpu
from seqloom.kernels._sums import past, product, total
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice

ROWS = {"h": 1, "x": 2, "h+x": 4, "h*x": 8}  # csrc/attn_rnn.hpp


def why_not(cell: Cell, job: Job) -> str | None:
    if cell.slots > 1:
        return "the CPU engine has one slot"
    return why_not_cpu(cell, job) or transformed()


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    parts, settings = sum(ROWS[part] for part in cell.context), (cell.heads, int(cell.norm))

    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        u = F.linear(x, w["weight_u"], w["bias_u"]) if "weight_u" in w else x
        norm = (w["scale_n"], w["bias_n"]) if cell.norm else (None, None)
        products = (w["weight_q"], w["bias_q"], w["weight_o"], w["bias_o"], w["weight_g"], w["bias_g"])
        y, h = _Scan.apply(
            (parts, *settings), whole(job.lengths), u.contiguous(), state[0].contiguous(), *products, *norm
        )
        return y, (h,)

    return run_twice(cell, job, cell.own(), fused)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, settings: Any, lengths: Tensor | None, u: Tensor, h0: Tensor, *own: Any
    ) -> tuple[Tensor, Tensor]:
        y, h1 = outputs(u, lengths, *u.shape), torch.empty_like(h0)
        call("attn_rnn", False, u.dtype, u.shape, **_given(settings, lengths, u, h0, own), y=y, h1=h1)
        ctx.settings = settings
        ctx.save_for_backward(lengths, u, h0, y, *own)
        return y, h1

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh1: Tensor) -> tuple[Tensor | None, ...]:
        lengths, u, h0, y, *own = ctx.saved_tensors
        B, T, H = u.shape
        dy, dh1 = dy.contiguous(), dh1.contiguous()
        du = outputs(u, lengths, B, T, H)
        ds, dqg, inner = scratch(u, lengths, (B, T, H), (B, T, 2 * H), (B, T, 2 * H))
        dh0, dnorm = torch.empty_like(h0), u.new_zeros(B, 2 * H)
        given = _given(ctx.settings, lengths, u, h0, own)
        call(
            "attn_rnn", True, u.dtype, u.shape, **given, y=y, dy=dy, dh1=dh1, dx=du, dh0=dh0, d=[dqg, ds, inner, dnorm]
        )
        aC, o = inner.flatten(0, 1).split(H, 1)
        dWq, dWgh = product(dqg.flatten(0, 1), past(y, h0)).split(H)
        dWo, dWgo = product(ds.flatten(0, 1), aC), product(dqg[..., H:].flatten(0, 1), o)
        dbq, dbg = total(dqg).split(H)
        products = (dWq, dbq, dWo, total(ds), torch.cat([dWgh, dWgo], 1), dbg)
        norm = dnorm.sum(0).split(H) if own[6] is not None else (None, None)
        return None, None, du, dh0, *products, *norm


def _given(settings: Any, lengths: Tensor | None, u: Tensor, h0: Tensor, own: Any) -> dict[str, Any]:
    parts, heads, norm = settings
    Wq, bq, Wo, bo, Wg, bg, scale, bias = (None if t is None else t.contiguous() for t in own)
    return dict(
        heads=heads, parts=parts, norm=norm, lengths=lengths, x=u, h0=h0, w=[Wq, Wo, Wg, scale], b=[bq, bo, bg, bias]
    )
