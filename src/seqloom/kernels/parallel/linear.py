"""A parallel scan of h' = a * h + b, for cells that are linear in h."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.job import ScanJob, clone_part
from seqloom.core.masks import make_mask


class LinearCell(Protocol):
    """A cell with h' = a * h + b, where a and b do not depend on h."""

    def project(self, x: Tensor) -> Tensor: ...
    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]: ...
    def start(self, x: Tensor) -> State: ...


def why_not(cell: LinearCell, job: ScanJob) -> str | None:
    """Return why this job cannot run here; None if it can."""
    return "an exported parallel scan would accept one length only" if torch.compiler.is_exporting() else None


def run(cell: LinearCell, job: ScanJob) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the last state.

    Zoneout, reset and lengths are also linear in h, so they become part of a and b.
    """
    from seqloom.kernels.linear.diagonal import scan_states  # imported here because it imports this file

    a, b = cell.coefficients(cell.project(job.x))
    (h,) = job.state
    if job.keep:
        keep = job.keep[0].to(a.dtype)
        a, b = keep + (1 - keep) * a, (1 - keep) * b
    if job.reset is not None:
        (start,) = cell.start(job.x)
        reset = job.reset.unsqueeze(-1)
        b = torch.where(reset, a * start.unsqueeze(1) + b, b)
        a = torch.where(reset, torch.zeros_like(a), a)
    if job.lengths is None:
        y = scan_states(a.to(h.dtype), b.to(h.dtype), h)
        return y.to(b.dtype), (clone_part(y[:, -1]),)
    valid = make_mask(job.lengths, a.shape[1]).unsqueeze(-1)
    a = torch.where(valid, a, torch.ones_like(a))
    b = torch.where(valid, b, torch.zeros_like(b))
    y = scan_states(a.to(h.dtype), b.to(h.dtype), h)
    return torch.where(valid, y, torch.zeros_like(y)).to(b.dtype), (clone_part(y[:, -1]),)


def linear_scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Return h after every step, (B, T, H), in log2(T) passes (Hillis & Steele 1986).

    Two steps (a1, b1), (a2, b2) are one step (a1 a2, a2 b1 + b2). These are products and sums of numbers that the loop
    computes too, so nothing overflows that does not overflow in the loop.

    Args:
        a: (B, T, H).
        b: (B, T, H).
        h: (B, H), the state before the first step.
    """
    b = torch.cat([(a[:, :1] * h.unsqueeze(1) + b[:, :1]), b[:, 1:]], 1)
    T, reach = a.shape[1], 1
    while reach < T:
        later, earlier = slice(reach, None), slice(None, -reach)
        b = torch.cat([b[:, :reach], torch.addcmul(b[:, later], a[:, later], b[:, earlier])], 1)
        if 2 * reach < T:  # another pass follows
            a = torch.cat([a[:, :reach], a[:, later] * a[:, earlier]], 1)
        reach *= 2
    return b
