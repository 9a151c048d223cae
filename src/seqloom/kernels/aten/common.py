"""What the three kernels over torch's own fused recurrences share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob, clone_part
from seqloom.core.masks import make_mask
from seqloom.core.precision import autocast_dtype
from seqloom.kernels.aten.cudnn import join_memory, parameter_names
from seqloom.kernels.fused import detach_all, run_fused, why_not_fused


def why_not_aten(cell: Cell, job: ScanJob) -> str | None:
    """What none of torch's fused recurrences does."""
    if job.mask is not None:
        return "torch's fused kernels have no recurrent dropout"
    if job.keep:
        return "torch's fused kernels have no zoneout"
    if job.reset is not None:
        return "torch's fused kernels cannot reset inside a sequence"
    if job.x.shape[0] == 0:
        return "the batch is empty"
    if job.x.device.type == "meta":
        return "there is nothing to run on the meta device"
    return why_not_fused()


def run_aten(cell: Cell, job: ScanJob, mode: str, fused: Callable[..., tuple[Tensor, State]]) -> tuple[Tensor, State]:
    """One of torch's functions, in autocast's type where that is on."""
    own = {name: getattr(cell, name) for name in parameter_names(cell)}
    carried = [s.dtype for s in job.state]
    amp = autocast_dtype(job.x.device.type)
    if amp is not None:
        job = replace(job, x=job.x.to(amp), state=tuple(s.to(amp) for s in job.state))
        own = {name: w.to(amp) for name, w in own.items()}

    def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
        k = 1 + len(job.state)
        return [*detach_all(tensors[:k]), *join_memory(cell, mode, detach_all(tensors[k:]))]

    with torch.autocast(job.x.device.type, enabled=False) if amp else nullcontext():
        y, state = run_fused(cell, job, own, lambda x, s, w: fused(x, s, list(w.values())), leaves)
    return y, tuple(s.to(d) for s, d in zip(state, carried, strict=True))


def at_lengths(y: Tensor, h: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Outputs with zeros past each length, and the last real one (h where there is none)."""
    if lengths is None:
        return y, clone_part(y[:, -1])
    valid = make_mask(lengths, y.shape[1])
    index = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, y.shape[2])
    last = torch.where((lengths > 0).unsqueeze(1), y.gather(1, index).squeeze(1), h)
    return torch.where(valid.unsqueeze(-1), y, torch.zeros_like(y)), last
