"""AttnRNN on an NVIDIA GPU in one kernel: a block takes 8 rows of the batch through all of time.

The forward keeps the outputs alone. The backward takes a chunk of time after another, the last first: one kernel
computes what was inside its steps, one walks back through them, and batched products make the weights' gradients.
The state and its gradient are carried in float32; nothing waits for the host; no sum depends on chance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels import _attn_rnn_parts, _cuda
from seqloom.kernels._attn_rnn_back import Chunk
from seqloom.kernels._attn_rnn_blocks import LARGEST, Forward, Weights
from seqloom.kernels._attn_rnn_parts import Plan, parts, second

MULTIPLE = 16  # of which the hidden size is one
CHUNKS = 2  # a chunk's memory, eleven planes of its states, stays small beside a layer's own
SMALL, LARGE = 1 << 19, 1 << 24  # numbers in a plane: fewer are not worth their launches, more not their memory


def why_not(cell: Cell, job: Job) -> str | None:
    reason = _attn_rnn_parts.why_not(cell, job, (torch.bfloat16, torch.float16), heads=16)
    if reason is None and (cell.hidden_size % MULTIPLE or cell.hidden_size > LARGEST):
        return f"it takes hidden sizes {MULTIPLE}, {2 * MULTIPLE}, .. {LARGEST}, not {cell.hidden_size}"
    return reason


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    y, h = _Scan.apply(*parts(cell, job))
    return y, (h.to(job.state[0].dtype),)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, u: Tensor, h0: Tensor, start: Tensor | None, *own: Any) -> tuple[Tensor, Tensor]:
        ctx.plan = plan
        B, T, _ = u.shape
        x = u if _straight(u) else u.contiguous()
        y = (torch.empty_like if plan.lengths is None else torch.zeros_like)(u, memory_format=torch.contiguous_format)
        last = torch.empty_like(h0, memory_format=torch.contiguous_format)
        first, anew, *weights = map(_contiguous, (h0, start, *own))
        given = _shared(plan, weights, x, y) | {"h0": first, "start": anew, "last": last, "B": B, "T": T}
        given |= {"x_row": x.stride(0), "x_step": x.stride(1), "y_row": y.stride(0), "y_step": y.stride(1)}
        plan.setting.forward.launch(_cuda.pointers(Forward, given), -(-B // 8), u.device)
        ctx.save_for_backward(u, h0, start, y, *own)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        u, h0, start, y, *own = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone asks for a second derivative
            return None, *second(plan, (u, h0, start, *own), (dy, dlast))
        B, T, H = u.shape
        x, dy, du = u.contiguous(), dy.to(u.dtype).contiguous(), torch.empty_like(y)
        dh = dlast.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        dstart = None if start is None else torch.zeros_like(start, memory_format=torch.contiguous_format)
        weights = [*map(_contiguous, own)]
        first, anew = (None if t is None else t.to(u.dtype).contiguous() for t in (h0, start))
        given = _shared(plan, weights, x, y) | {"dy": dy, "du": du, "dh": dh, "dstart": dstart, "B": B, "T": T}
        given |= {"h0": first, "start": anew}
        size = _steps(B, T, H)
        chunk = Chunk(plan.setting, B, size, u, given)
        for begin in reversed(range(0, T, size)):
            chunk.go_back(begin, min(size, T - begin))
        return None, du, dh, dstart, *chunk.gradients(own)


def _steps(B: int, T: int, H: int) -> int:
    """How many make a chunk."""
    wanted = -(-T // CHUNKS) * B * H
    return min(T, max(1, min(LARGE, max(SMALL, wanted)) // (B * H)))


def _shared(plan: Plan, own: Any, x: Tensor, y: Tensor) -> dict[str, Any]:
    """What every kernel is told."""
    w = Weights(*(None if t is None else t.data_ptr() for t in own))
    given = {"w": w, "x": x, "y": y, "mask": plan.mask, "keep": plan.keep}
    return given | {"reset": plan.reset, "lengths": plan.lengths}


def _contiguous(w: Tensor | None) -> Tensor | None:
    return None if w is None else w.contiguous()


def _straight(t: Tensor) -> bool:
    """Whether steps begin at multiples of 16 bytes."""
    return t.stride(2) == 1 and t.data_ptr() % 16 == 0 and t.stride(0) % 8 == 0 and t.stride(1) % 8 == 0
