"""AttnRNN on the CPU engine."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.cpu.engine import why_not_cpu
from seqloom.kernels.cpu.scan import run_cpu
from seqloom.kernels.fused import run_fused, why_not_fused

ROWS = {"h": 1, "x": 2, "h+x": 4, "h*x": 8}  # csrc/attn_rnn.hpp


def why_not(cell: Cell, job: ScanJob) -> str | None:
    return why_not_cpu(cell, job) or why_not_fused()


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    m = cell.slots
    kind = dict(heads=cell.heads, parts=sum(ROWS[part] for part in cell.context), kind=int(cell.norm), slots=m)
    each = job if m == 1 else _each_slot(job, m)

    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        u = F.linear(x, w["weight_u"], w["bias_u"]) if "weight_u" in w else x
        u = u if m == 1 else u.repeat_interleave(m, 0)
        y, after = run_cpu("attn_rnn", cell, each, w, u, state, [w.get(name) for name in WEIGHT_NAMES], **kind)
        return y if m == 1 else y.unflatten(0, (-1, m)).sum(1), after

    return run_fused(cell, job, cell.own_parameters(), fused)


def _each_slot(job: ScanJob, m: int) -> ScanJob:
    """A row for every slot: to the engine a sequence with m slots is m rows, one below the other."""
    lengths, reset, mask = (
        None if t is None else t.repeat_interleave(m, 0) for t in (job.lengths, job.reset, job.mask)
    )
    keep = tuple(k.transpose(1, 2).flatten(0, 1) for k in job.keep)  # (B, T, m, H) -> (B * m, T, H)
    return replace(job, lengths=lengths, reset=reset, mask=mask, keep=keep)
