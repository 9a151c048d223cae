"""AttnRNN on the CPU engine."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._cpu import why_not_cpu
from seqloom.kernels._cpu_scan import run_cpu
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice

ROWS = {"h": 1, "x": 2, "h+x": 4, "h*x": 8}  # csrc/attn_rnn.hpp
NAMES = ("weight_q", "bias_q", "weight_o", "bias_o", "weight_g", "bias_g", "scale_n", "bias_n")


def why_not(cell: Cell, job: Job) -> str | None:
    if cell.slots > 1:
        return "the CPU engine has one slot"
    return why_not_cpu(cell, job) or transformed()


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    kind = dict(heads=cell.heads, parts=sum(ROWS[part] for part in cell.context), kind=int(cell.norm))

    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        u = F.linear(x, w["weight_u"], w["bias_u"]) if "weight_u" in w else x
        return run_cpu("attn_rnn", cell, job, w, u, state, [w.get(name) for name in NAMES], **kind)

    return run_twice(cell, job, cell.own(), fused)
