"""The kernels of the C++ engine: RNN, GRU and LSTM, with and without layer normalisation, and AttnRNN."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.cpu.engine import why_not_cpu
from seqloom.kernels.cpu.scan import run_cpu
from seqloom.kernels.fused import run_fused, why_not_fused

HAS_ONEDNN_LSTM = platform.machine().lower() in ("x86_64", "amd64")
WEIGHTS = {
    "rnn": ("weight_hh", "bias_hh"),
    "gru": ("weight_hh", "bias_hh"),
    "lstm": ("weight_hh", "bias_hh"),
    "ln_gru": ("weight_hh", "scale_hh", "bias_hh"),
    "ln_lstm": ("weight_hh", "scale_hh", "bias_hh", "scale_c", "bias_c"),
}  # in the engine's order
CONTEXT_FLAGS = {"h": 1, "x": 2, "h+x": 4, "h*x": 8}  # as in csrc/attn_rnn.hpp


@dataclass
class GatedOnCpu:
    """Run one of the cells in WEIGHTS on the engine."""

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
        """Return why another kernel is faster for this job; None if none is."""
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
        kind = {"kind": int(cell.nonlinearity == "relu")} if self.name == "rnn" else {}

        def run_kernel(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
            plain = self.name in ("rnn", "gru", "lstm")
            gx = F.linear(x, w["weight_ih"], w.get("bias_ih")) if plain else bind_weights(cell, w).project(x)
            return run_cpu(self.name, cell, job, w, gx, state, [w.get(name) for name in WEIGHTS[self.name]], **kind)

        return run_fused(cell, job, cell.own_parameters(), run_kernel)


class AttnRNNOnCpu:
    """Run AttnRNN on the engine."""

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        return why_not_cpu(cell, job) or why_not_fused()

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences."""
        m = cell.slots
        parts = sum(CONTEXT_FLAGS[part] for part in cell.context)
        kind = dict(heads=cell.heads, parts=parts, kind=int(cell.norm), slots=m)
        slot_job = job if m == 1 else _split_slots(job, m)

        def run_kernel(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
            u = bind_weights(cell, w).project(x)
            u = u if m == 1 else u.repeat_interleave(m, 0)
            y, after = run_cpu("attn_rnn", cell, slot_job, w, u, state, [w.get(name) for name in WEIGHT_NAMES], **kind)
            return y if m == 1 else y.unflatten(0, (-1, m)).sum(1), after

        return run_fused(cell, job, cell.own_parameters(), run_kernel)


def _split_slots(job: ScanJob, m: int) -> ScanJob:
    """Return the job with one row per slot: to the engine a sequence with m slots is m consecutive rows."""
    lengths, reset, mask = (
        None if t is None else t.repeat_interleave(m, 0) for t in (job.lengths, job.reset, job.mask)
    )
    keep = tuple(k.transpose(1, 2).flatten(0, 1) for k in job.keep)  # (B, T, m, H) -> (B * m, T, H)
    return replace(job, lengths=lengths, reset=reset, mask=mask, keep=keep)
