"""The kernels of the C++ engine: RNN, GRU and LSTM, with and without layer normalisation, and AttnRNN."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics
from seqloom.kernels.autograd import make_call, run_prepared
from seqloom.kernels.cpu.engine import why_not_cpu
from seqloom.kernels.cpu.prepared import ENGINE_WEIGHTS, PreparedStack
from seqloom.kernels.fused import is_traced, why_not_fused
from seqloom.kernels.stack import ProjectedStack

HAS_ONEDNN_LSTM = platform.machine().lower() in ("x86_64", "amd64")


@dataclass(frozen=True)
class OnCpu:
    """Run one of the engine's cells."""

    name: str

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        if self.name == "gru" and not cell.reset_after:
            return "the CPU engine applies the reset gate after the product (reset_after=True)"
        if self.name == "lstm" and cell.proj_size:
            return "the CPU engine has no projected LSTM (proj_size)"
        if self.name == "rnn" and cell.nonlinearity not in ("tanh", "relu"):
            return f"the CPU engine supports tanh and relu, not {cell.nonlinearity}"
        return why_not_cpu(cell, job) or why_not_fused()

    def why_not_auto(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why another kernel is faster for this job; None if this one is the fastest."""
        even = job.is_plain and job.lengths is None and job.x.dtype == torch.float32
        if self.name != "lstm" or not (HAS_ONEDNN_LSTM and even and cell.hidden_size < heuristics.ONEDNN_LSTM_HIDDEN):
            return None
        (rows, steps), units = job.x.shape[:2], cell.hidden_size
        is_small = units <= heuristics.SMALL_LSTM_HIDDEN and rows * units <= heuristics.SMALL_LSTM_NUMBERS
        if units % heuristics.LSTM_HIDDEN_MULTIPLE == 0 and (is_small or (steps == 1 and not torch.is_grad_enabled())):
            return None
        return f"torch's own (oneDNN) is faster below {heuristics.ONEDNN_LSTM_HIDDEN} units if all lengths are equal"

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences."""
        x = cell.project(job.x).contiguous()
        starts = () if job.reset is None else cell.start(job.x)
        own = cell.own_parameters()
        read = [name for name in ENGINE_WEIGHTS[self.name] if name in own]
        weights = [own[name].contiguous() for name in read]
        stack = ProjectedStack([cell], [{name: i for i, name in enumerate(read)}], x.shape, True, 1)
        states, starts = (tuple(s.contiguous() for s in part) for part in (job.state, starts))
        call = make_call(job, x, states, weights, starts)
        call.train = call.train or is_traced()
        y, *end = run_prepared(PreparedStack(stack, weights), call)
        return y, tuple(end)
