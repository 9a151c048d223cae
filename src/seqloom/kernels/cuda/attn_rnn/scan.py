"""AttnRNN over time on a GPU, and back: what its tiers of fused kernels have in common."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.kernels.cuda.attn_rnn.block_backward import Chunk
from seqloom.kernels.cuda.attn_rnn.block_code import Forward, Setting, Weights
from seqloom.kernels.cuda.attn_rnn.parts import Plan, parts, second
from seqloom.kernels.cuda.runtime import launch


@dataclass(frozen=True, eq=False)
class Tier:
    """How one of them goes forward, and what goes back, through so many `steps` of u at a time."""

    forward: Callable[[Setting, ctypes.Structure, int, torch.device], None]  # of B rows
    chunk: Callable[[Plan, int, dict[str, Any], Any], Chunk]
    steps: Callable[[Tensor], int]
    told: type[ctypes.Structure] = Forward
    states: Callable[[Tensor, Tensor], Tensor | None] = lambda y, _: y  # what is kept for the way back, of y and h0


def run(tier: Tier, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    y, h = _Scan.apply(tier, *parts(cell, job))
    return y, (h.to(job.state[0].dtype),)


def pointed(own: Any) -> tuple[Weights, list[Tensor | None]]:  # type: ignore[valid-type]
    """The weights as kernels take them, and the tensors that have to live as long."""
    whole = [None if w is None else _aligned(w) for w in own]
    return Weights(*(None if w is None else w.data_ptr() for w in whole)), whole


def in_type(given: dict[str, Any], own: Any) -> dict[str, Any]:
    """What is given on the way back, all of it in the kernel's type, and the weights as they are."""
    w, alive = pointed(own)
    dtype = given["x"].dtype
    starts = {n: None if given[n] is None else given[n].to(dtype).contiguous() for n in ("h0", "start")}
    return given | starts | {"w": w, "alive": alive}


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tier: Tier, plan: Plan, u: Tensor, h0: Tensor, start: Tensor | None, *own: Any
    ) -> tuple[Tensor, Tensor]:
        ctx.tier, ctx.plan = tier, plan
        B, T, _ = u.shape
        x = u if _straight(u) else u.contiguous()
        y = (torch.empty_like if plan.lengths is None else torch.zeros_like)(u, memory_format=torch.contiguous_format)
        last = torch.empty_like(h0, memory_format=torch.contiguous_format)
        kept = tier.states(y, h0)
        w, _alive = pointed(own)
        first, anew = _contiguous(h0), _contiguous(start)
        given = _asked(plan) | {"w": w, "x": x, "y": y, "h0": first, "start": anew, "last": last, "B": B, "T": T}
        given |= {"x_row": x.stride(0), "x_step": x.stride(1), "y_row": y.stride(0), "y_step": y.stride(1)}
        tier.forward(plan.setting, launch.pointers(tier.told, given | {"kept": kept}), B, u.device)
        ctx.save_for_backward(u, h0, start, kept, *own)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        u, h0, start, kept, *own = read_saved(ctx)
        if torch.is_grad_enabled():  # someone asks for a second derivative
            return None, None, *second(plan, (u, h0, start, *own), (dy, dlast))
        B, T, _ = u.shape
        x, dy = _aligned(u), _aligned(dy.to(u.dtype))
        du = torch.empty_like(x)
        dh = dlast.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        dstart = None if start is None else torch.zeros_like(start, memory_format=torch.contiguous_format)
        given = _asked(plan) | {"x": x, "y": kept, "h0": _contiguous(h0), "start": _contiguous(start), "B": B, "T": T}
        given |= {"dy": dy, "du": du, "dh": dh, "dstart": dstart}
        size = ctx.tier.steps(u)
        chunk: Chunk = ctx.tier.chunk(plan, size, given, own)
        for begin in reversed(range(0, T, size)):
            chunk.go_back(begin, min(size, T - begin))
        return None, None, du, dh, dstart, *chunk.gradients(own)


def _asked(plan: Plan) -> dict[str, Any]:
    return {"mask": plan.mask, "keep": plan.keep, "reset": plan.reset, "lengths": plan.lengths}


def _contiguous(w: Tensor | None) -> Tensor | None:
    return None if w is None else w.contiguous()


def _straight(t: Tensor) -> bool:
    """Whether steps begin at multiples of 16 bytes."""
    return t.stride(2) == 1 and t.data_ptr() % 16 == 0 and t.stride(0) % 8 == 0 and t.stride(1) % 8 == 0


def _aligned(t: Tensor) -> Tensor:
    """Contiguous, from a multiple of 16 bytes."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()
