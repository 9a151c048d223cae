"""AttnRNN with its backward written by hand, in plain torch: for every device and type.

The forward is the loop without a graph and keeps the states alone. The backward computes what is inside all steps again
in batched products, walks back through time with three small products a step, and makes the gradients of the weights
in batched products. Letters are the cell's; d before one is the gradient of the loss by it; s is what enters gelu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels import any_loop
from seqloom.kernels._sums import past, product, total
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice
from seqloom.precision import autocast_dtype
from seqloom.weights import bound

ROWS = ("h", "x", "h+x", "h*x")
NAMES = ("weight_q", "bias_q", "weight_o", "bias_o", "weight_g", "bias_g", "scale_n", "bias_n")


def why_not(cell: Cell, job: Job) -> str | None:
    if cell.slots > 1:
        return "the hand-written backward has one slot"
    if job.dt is not None:
        return "the hand-written backward knows no timespans"
    if any(t is not None and t.requires_grad for t in (job.mask, *job.keep)):
        return "the hand-written backward gives dropout masks no gradient"
    if autocast_dtype(job.x.device.type):
        return "the hand-written backward does not run under autocast"
    if job.x.shape[0] == 0:
        return "the batch is empty"
    return transformed()


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        u = F.linear(x, w["weight_u"], w["bias_u"]) if "weight_u" in w else x
        start = None if job.reset is None else bound(cell, w).start(x)[0]
        y, h = _Scan.apply(cell, job, start, u, state[0], *(w.get(name) for name in NAMES))
        return y, (h,)

    return run_twice(cell, job, cell.own(), fused)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cell: Cell, job: Job, start: Tensor | None, u: Tensor, h0: Tensor, *own: Any
    ) -> tuple[Tensor, Tensor]:
        view = bound(cell, {n: w for n, w in zip(NAMES, own, strict=True) if w is not None})
        view.input_size = cell.hidden_size  # u is projected already
        y, (h,) = any_loop.run(view, replace(job, x=u, state=(h0,)))
        ctx.cell, ctx.job = cell, replace(job, x=u.detach(), state=())
        ctx.save_for_backward(start, u, h0, y, *own)
        return y, h.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh: Tensor) -> tuple[Tensor | None, ...]:
        start, u, h0, y, *own = ctx.saved_tensors
        job, now = ctx.job, ctx.job.per_step()
        h = past(y, h0).view(u.shape)
        if start is not None:
            h = torch.where(job.reset.unsqueeze(-1), start.unsqueeze(1), h)
        seen = h if job.mask is None else h * job.mask.unsqueeze(1)
        at = _inside(ctx.cell, h, seen, u, own)
        found: list[tuple[Tensor, ...]] = []
        dstart = None if start is None else torch.zeros_like(start)
        for t in reversed(range(u.shape[1])):
            dlater = dh + dy[:, t]
            kept = now["keep_0"][t].to(dlater.dtype) * dlater if job.keep else None
            before, dseen, *inner = _back(at, t, dlater if kept is None else dlater - kept, own)
            before = before + (dseen if job.mask is None else dseen * job.mask)
            before = before if kept is None else before + kept
            if dstart is not None:
                anew = now["reset"][t].unsqueeze(1)
                dstart = dstart + torch.where(anew, before, torch.zeros_like(before))
                before = torch.where(anew, torch.zeros_like(before), before)
            if "valid" in now:
                valid = now["valid"][t].unsqueeze(1)
                before = torch.where(valid, before, dh)
                inner = [torch.where(valid, d, torch.zeros_like(d)) for d in inner]
            dh = before
            found.append(tuple(inner))
        dq, ds, dg, du, dn = (torch.stack(parts[::-1], 1) for parts in zip(*found, strict=True))
        seen = seen.flatten(0, 1)
        dWg = product(dg.flatten(0, 1), torch.cat([seen, at.o.flatten(0, 1)], 1))
        dWq, dWo = product(dq.flatten(0, 1), seen), product(ds.flatten(0, 1), at.aC.flatten(0, 1))
        norm = (total(dn * at.xhat), total(dn)) if own[6] is not None else (None, None)
        return None, None, dstart, du, dh, dWq, total(dq), dWo, total(ds), dWg, total(dg), *norm


@dataclass(frozen=True)
class _Inside:
    """What happens inside every step, (B, T, ...) each."""

    h: Tensor
    u: Tensor
    q: Tensor
    p: Tensor  # (B, T, 4, heads, 1): attention, 0 for rows that are left out
    aC: Tensor
    slope: Tensor  # of gelu
    o: Tensor
    g: Tensor
    turn: Tensor  # (n - h) g (1 - g): what a change of the gate before its sigmoid does to h'
    xhat: Tensor
    r: Tensor


def _inside(cell: Any, h: Tensor, seen: Tensor, u: Tensor, own: Sequence[Tensor]) -> _Inside:
    Wq, bq, Wo, bo, Wg, bg, scale, bias = own
    heads = (cell.heads, h.shape[-1] // cell.heads)
    q = F.linear(seen, Wq, bq)
    C = torch.stack([h, u, h + u, h * u], 2).unflatten(-1, heads)
    score = (q.unsqueeze(2).unflatten(-1, heads) * C).sum(-1, keepdim=True) / math.sqrt(heads[1])
    out = torch.tensor([row not in cell.context for row in ROWS], device=h.device).view(4, 1, 1)
    p = torch.softmax(score.masked_fill(out, -math.inf), 2)
    aC = (p * C).sum(2).flatten(-2)
    s = F.linear(aC, Wo, bo)
    cdf = 0.5 * (1 + torch.erf(s * math.sqrt(0.5)))
    slope = cdf + s * torch.exp(-0.5 * s * s) / math.sqrt(2 * math.pi)
    o = F.gelu(s)
    g = torch.sigmoid(F.linear(torch.cat([seen, o], -1), Wg, bg))
    z = o + h
    r = torch.rsqrt(z.var(-1, correction=0, keepdim=True) + 1e-5)
    xhat = (z - z.mean(-1, keepdim=True)) * r
    n = xhat * scale + bias if scale is not None else o
    return _Inside(h, u, q, p, aC, slope, o, g, (n - h) * g * (1 - g), xhat, r)


def _back(at: _Inside, t: int, dh: Tensor, own: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One step: the gradient of h' -> those of h, of what is seen of h, of q, s, the gate before its sigmoid, u, n."""
    Wq, _, Wo, _, Wg, _, scale, _ = own
    h, u, q, p, xhat, r = (a[:, t] for a in (at.h, at.u, at.q, at.p, at.xhat, at.r))
    heads = p.shape[2], h.shape[-1] // p.shape[2]
    dn = dh * at.g[:, t]
    dg = dh * at.turn[:, t]
    dz = torch.zeros_like(dn)
    if scale is not None:
        dx = dn * scale
        dz = r * (dx - dx.mean(-1, keepdim=True) - xhat * (dx * xhat).mean(-1, keepdim=True))
    dgh, dgo = (dg @ Wg).chunk(2, -1)
    ds = ((dz if scale is not None else dn) + dgo) * at.slope[:, t]
    v = (ds @ Wo).unflatten(-1, heads)
    h_, u_, q_ = (a.unflatten(-1, heads) for a in (h, u, q))
    vh, vu = (v * h_).sum(-1, keepdim=True), (v * u_).sum(-1, keepdim=True)
    dp = torch.stack([vh, vu, vh + vu, (v * h_ * u_).sum(-1, keepdim=True)], 1)  # (B, 4, heads, 1)
    dscore = p * (dp - (p * dp).sum(1, keepdim=True)) / math.sqrt(heads[1])
    (wh, wu, ws, wp), (zh, zu, zs, zp) = p.unbind(1), dscore.unbind(1)
    both = wp * v + zp * q_
    du = (wu + ws) * v + (zu + zs) * q_ + both * h_
    dq = ((zh + zs) * h_ + (zu + zs) * u_ + zp * h_ * u_).flatten(-2)
    dC = ((wh + ws) * v + (zh + zs) * q_ + both * u_).flatten(-2)
    return dh - dn + dz + dC, dgh + dq @ Wq, dq, ds, dg, du.flatten(-2), dn
