"""h' = a * h + b over all steps at once, for the cells that are linear in h."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.job import ScanJob, clone_part
from seqloom.core.masks import make_mask


class LinearCell(Protocol):
    def project(self, x: Tensor) -> Tensor: ...
    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]: ...
    def start(self, x: Tensor) -> State: ...


def why_not(cell: LinearCell, job: ScanJob) -> str | None:
    """Return why this job cannot run here; None if it can."""
    return "the number of its passes depends on the length" if torch.compiler.is_exporting() else None


def run(cell: LinearCell, job: ScanJob) -> tuple[Tensor, State]:
    """Zoneout, reset and lengths are also linear in h, so they become part of a and b."""
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
        y = linear_scan(a.to(h.dtype), b.to(h.dtype), h)
        return y.to(b.dtype), (clone_part(y[:, -1]),)
    valid = make_mask(job.lengths, a.shape[1]).unsqueeze(-1)
    a = torch.where(valid, a, torch.ones_like(a))
    b = torch.where(valid, b, torch.zeros_like(b))
    y = linear_scan(a.to(h.dtype), b.to(h.dtype), h)
    return torch.where(valid, y, torch.zeros_like(y)).to(b.dtype), (clone_part(y[:, -1]),)


def linear_scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """(B, T, H) twice and (B, H) -> every h: by doubling, log2(T) passes (Hillis & Steele 1986).

    Two steps (a1, b1), (a2, b2) are one step (a1 a2, a2 b1 + b2). Only products and sums of
    what the loop adds up too, so nothing can overflow that does not there.
    """
    b = torch.cat([(a[:, :1] * h.unsqueeze(1) + b[:, :1]), b[:, 1:]], 1)
    T, reach = a.shape[1], 1
    while reach < T:
        later, earlier = slice(reach, None), slice(None, -reach)
        b = torch.cat([b[:, :reach], torch.addcmul(b[:, later], a[:, later], b[:, earlier])], 1)
        a = torch.cat([a[:, :reach], a[:, later] * a[:, earlier]], 1)
        reach *= 2
    return b
