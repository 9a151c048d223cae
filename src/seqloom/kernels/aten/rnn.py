"""torch's own fused RNN (cuDNN on a GPU)."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels.aten.common import at_lengths, run_aten, why_not_aten


def why_not(cell: Cell, job: ScanJob) -> str | None:
    if cell.nonlinearity not in ("tanh", "relu"):
        return f"torch's fused RNN knows tanh and relu, not {cell.nonlinearity}"
    return why_not_aten(cell, job)


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    scan = torch._VF.rnn_tanh if cell.nonlinearity == "tanh" else torch._VF.rnn_relu

    def fused(x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        has_bias, train, batch_first = cell.bias_ih is not None, torch.is_grad_enabled(), True
        y, _ = scan(x, state[0].unsqueeze(0), weights, has_bias, 1, 0.0, train, False, batch_first)
        y, h = at_lengths(y, state[0], job.lengths)
        return y, (h,)

    return run_aten(cell, job, f"RNN_{cell.nonlinearity.upper()}", fused)
