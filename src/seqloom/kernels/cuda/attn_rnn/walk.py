"""AttnRNN over time in plain torch, for any number of slots: a forward that keeps the states, and its gradients.

The backward computes what is inside all steps again in batched products, walks back through time with three small
products a step, and makes the gradients of the weights in batched products. Nothing here asks a GPU for a number, so
that a CUDA graph may record it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.job import ScanJob
from seqloom.kernels import attn_rnn_plain, loop


def forth(
    cell: Any, job: ScanJob, start: Tensor | None, u: Tensor, h0: Tensor, own: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the states after all steps, (B, T, ...), and the last; `own`: the weights, as in WEIGHT_NAMES."""
    steps: Any = _Steps(cell, start, own)
    kept, (h,) = loop.run(steps, replace(job, x=u, state=(h0,)))
    return kept, h


class _Steps:
    """The cell as the loop sees it. Its output is the state: the backward needs every slot."""

    def __init__(self, cell: Any, start: Tensor | None, own: Sequence[Tensor]) -> None:
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


def output(cell: Any, kept: Tensor) -> Tensor:
    """What the cell gives of its states, (B, T, H)."""
    return kept if cell.slots == 1 else kept.sum(2)


def back(
    cell: Any,
    job: ScanJob,
    inputs: tuple[Tensor | None, Tensor, Tensor],
    kept: Tensor,
    grads: tuple[Tensor, Tensor],
    own: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs (start, u and h0) and of the weights, from those of the output and the last state."""
    (start, u, h0), (dy, dlast), now = inputs, grads, job.per_step()
    (B, T, H), m = u.shape, cell.slots
    h = torch.cat([h0.unsqueeze(1), kept[:, :-1]], 1).view(B, T, m, H)  # the state before every step
    if start is not None and job.reset is not None:
        h = torch.where(job.reset.view(B, T, 1, 1), start.view(B, 1, m, H), h)
    mask = None if job.mask is None else job.mask.unsqueeze(1)
    seen = h if mask is None else h * mask.unsqueeze(1)
    at = attn_rnn_plain.compute_inside(cell, h, seen, u, own)
    slopes = attn_rnn_plain.compute_slopes(at, own)
    inside, around = at.steps(), slopes.steps()
    found: list[tuple[Tensor, ...]] = []
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
            anew = now["reset"][t].view(B, 1, 1)
            dstart = dstart + before.masked_fill(~anew, 0)
            before = before.masked_fill(anew, 0)
        if "valid" in now:
            valid = now["valid"][t].view(B, 1, 1)
            before = torch.where(valid, before, dh)
            inner = [d.masked_fill(~valid, 0) for d in inner]
        dh = before
        found.append(tuple(inner))
    dq, ds, dg, dn, du = (torch.stack(parts[::-1], 1) for parts in zip(*found, strict=True))
    weights = attn_rnn_plain.weight_gradients(at, seen, slopes, (dq, ds, dg, dn), own)
    begun = None if start is None else dstart.view(start.shape)
    return begun, du.squeeze(2), dh.view(h0.shape), *weights
