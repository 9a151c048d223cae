"""AttnRNN in plain torch with a handwritten backward pass: for every device and type, and any number of slots.

The backward pass recomputes the intermediates of all steps with batched products, runs the steps in reverse with three
small products each, and computes the gradients of the weights with batched products. Nothing here synchronises with a
GPU, so a CUDA graph can record it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.kernels import attn_rnn_plain, loop
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES, Equations
from seqloom.kernels.autograd import Call, Gradients
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.fused import why_not_fused
from seqloom.kernels.stack import Stack


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return why this cell or job cannot run here; None if it can."""
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
    """Run the cell over the job's sequences."""
    return scan.run_job(lambda stack: ManualScan(cell, stack), cell, job, job.x.dtype, state_type=None)


class States(NamedTuple):
    """What a backward pass needs besides the call: the states after all steps, (B, T, ..)."""

    states: Tensor


class ManualScan(NamedTuple):
    """The passes of a projected input (`Prepared` of `../../autograd.py`)."""

    cell: Cell
    stack: Stack

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], States]:
        """Return the outputs (B, T, H), the last state, and the states after all steps."""
        start = call.starts[0] if call.starts else None
        own = call.weights[: len(WEIGHT_NAMES)]
        states, h = run_forward(self.cell, _read_job(call), start, call.x, call.states[0], own)
        return (sum_slots(self.cell, states), h.clone()), States(states)

    def backward(self, call: Call, saved: States, grads: Sequence[Tensor | None], needs: Gradients) -> Gradients:
        """Return the gradients of the input, the first state, the start of a reset and the weights."""
        u, (h0,), (dy, dlast) = call.x, call.states, grads
        pulls = torch.zeros_like(u) if dy is None else dy, torch.zeros_like(h0) if dlast is None else dlast
        inputs, own = (call.starts[0] if call.starts else None, u, h0), call.weights[: len(WEIGHT_NAMES)]
        dstart, du, dh, *gradients = run_backward(self.cell, _read_job(call), inputs, saved.states, pulls, own)
        more = [None] * (len(call.weights) - len(own))
        return Gradients(du, (dh,), [*gradients, *more], (dstart,) if call.starts else ())

    def differentiate(self, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
        """Return the gradients by the loop."""
        return scan.differentiate(self.stack, call, grads)


def _read_job(call: Call) -> ScanJob:
    return ScanJob(call.x, (), call.lengths, call.reset, None, call.mask, tuple(call.keep))


def run_forward(
    cell: Cell | Equations, job: ScanJob, start: Tensor | None, u: Tensor, h0: Tensor, own: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the states after all steps, (B, T, ...), and the last; `own`: the weights, as in WEIGHT_NAMES."""
    steps: Any = _StateCell(cell, start, own)
    states, (h,) = loop.run_masked(steps, replace(job, x=u, state=(h0,)))  # may be recorded
    return states, h


class _StateCell:
    """The cell for the loop, with the state as its output: the backward pass needs every slot."""

    def __init__(self, cell: Cell | Equations, start: Tensor | None, own: Sequence[Tensor]) -> None:
        self.cell, self.own, self.first = cell, own, start

    def project(self, u: Tensor) -> Tensor:
        return u

    def start(self, u: Tensor) -> tuple[Tensor | None]:
        return (self.first,)

    def output(self, state: State) -> Tensor:
        return state[0]

    def step(self, u: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        h = state[0].unsqueeze(1) if self.cell.slots == 1 else state[0]  # (B, m, H)
        seen = h if mask is None else h * mask.unsqueeze(1)
        h = attn_rnn_plain.step_forward(self.cell, h, seen, u, self.own).view(state[0].shape)
        return h, (h,)


def sum_slots(cell: Cell | Equations, states: Tensor) -> Tensor:
    """Return the cell's output from its states: (B, T, H)."""
    return states if cell.slots == 1 else states.sum(2)


def run_backward(
    cell: Cell | Equations,
    job: ScanJob,
    inputs: tuple[Tensor | None, Tensor, Tensor],
    states: Tensor,
    grads: tuple[Tensor, Tensor],
    own: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of start, u, h0 and the weights, from those of the output and the last state."""
    (start, u, h0), (dy, dlast), now = inputs, grads, job.per_step()
    (B, T, H), m = u.shape, cell.slots
    h = torch.cat([h0.unsqueeze(1), states[:, :-1]], 1).view(B, T, m, H)  # the state before every step
    if start is not None and job.reset is not None:
        h = torch.where(job.reset.view(B, T, 1, 1), start.view(B, 1, m, H), h)
    mask = None if job.mask is None else job.mask.unsqueeze(1)
    seen = h if mask is None else h * mask.unsqueeze(1)
    at = attn_rnn_plain.compute_inside(cell, h, seen, u, own)
    slopes = attn_rnn_plain.compute_slopes(at, own)
    inside, around = at.steps(), slopes.steps()
    steps: list[tuple[Tensor, ...]] = []  # gradients inside each step, the last first
    dh = dlast.reshape(B, m, H)
    dstart = torch.zeros_like(dh)
    for t in reversed(range(T)):
        dlater = dh + dy[:, t].unsqueeze(1)
        stays = now["keep_0"][t].view(dh.shape).to(dh.dtype) * dlater if job.keep else None
        passed = dlater if stays is None else dlater - stays
        before, dseen, *inner = attn_rnn_plain.step_backward(cell, inside[t], around[t], passed, own)
        before = before + (dseen if mask is None else dseen * mask)
        before = before if stays is None else before + stays
        if start is not None:
            is_reset = now["reset"][t].view(B, 1, 1)
            dstart = dstart + before.masked_fill(~is_reset, 0)
            before = before.masked_fill(is_reset, 0)
        if "valid" in now:
            valid = now["valid"][t].view(B, 1, 1)
            before = torch.where(valid, before, dh)
            inner = [d.masked_fill(~valid, 0) for d in inner]
        dh = before
        steps.append(tuple(inner))
    dq, ds, dg, dn, du = (torch.stack(parts[::-1], 1) for parts in zip(*steps, strict=True))
    weights = attn_rnn_plain.weight_gradients(at, seen, slopes, (dq, ds, dg, dn), own)
    begun = None if start is None else dstart.view(start.shape)
    return begun, du.squeeze(2), dh.view(h0.shape), *weights
