"""RNN, GRU and LSTM by torch's fused operators (oneDNN for the LSTM on a CPU, cuDNN on a GPU).

torch returns the LSTM's c after the last step only. If rows end earlier, a CPU removes them from the batch, which also
skips padding. On a GPU that would make the host wait for the lengths and launch a kernel for each, so c is held
constant after a row's end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob, clone_part, zero_padding
from seqloom.core.precision import autocast_dtype
from seqloom.kernels import heuristics
from seqloom.kernels.aten.cudnn import cudnn_mode, flatten_weights, join_memory, parameter_names
from seqloom.kernels.autograd import Call, run_prepared
from seqloom.kernels.fused import TorchScan, flatten_loop, is_traced, why_not_fused

SATURATED = 1e4  # input of a sigmoid that is exactly 0 or 1 in every type


@dataclass(frozen=True)
class AtenKernel:
    """Run "rnn", "gru" or "lstm" with torch's fused operator."""

    name: str

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        if self.name == "gru" and not cell.reset_after:
            return "torch's fused GRU applies the reset gate after the product (reset_after=True)"
        if self.name == "rnn" and cell.nonlinearity not in ("tanh", "relu"):
            return f"torch's fused RNN supports tanh and relu, not {cell.nonlinearity}"
        if job.mask is not None:
            return "torch's fused kernels have no recurrent dropout"
        if job.keep:
            return "torch's fused kernels have no zoneout"
        if job.reset is not None:
            return "torch's fused kernels cannot reset inside a sequence"
        if job.x.shape[0] == 0:
            return "the batch is empty"
        if job.x.is_cuda and torch.backends.cudnn.enabled and job.x.shape[1] > heuristics.CUDNN_MOST_STEPS:
            return f"cuDNN takes {heuristics.CUDNN_MOST_STEPS:,} steps, not {job.x.shape[1]:,}"
        if job.x.device.type == "meta":
            return "there is nothing to run on the meta device"
        return why_not_fused()

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences, in autocast's type if autocast is on."""
        mode = cudnn_mode(cell)
        own = {name: getattr(cell, name) for name in parameter_names(cell)}
        state_types = [s.dtype for s in job.state]
        amp = autocast_dtype(job.x.device.type)
        if amp is not None:
            job = replace(job, x=job.x.to(amp), state=tuple(s.to(amp) for s in job.state))
            own = {name: w.to(amp) for name, w in own.items()}

        def run(x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
            if self.name == "lstm":
                return _run_lstm(cell, x, state, weights, job.lengths)
            y, _ = _call(getattr(torch._VF, mode.lower()), x, state[0].unsqueeze(0), weights)
            y, h = _cut_outputs(y, state[0], job.lengths)
            return y, (h,)

        weights = list(own.values())
        call = Call(job.x, job.state, weights)
        with torch.autocast(job.x.device.type, enabled=False) if amp else nullcontext():
            if is_traced():  # a trace cannot record the node, and would record a detached weight as a constant
                y, state = run(job.x, job.state, weights)
            else:
                call.train = call.needs_gradient()
                scan = TorchScan(run, partial(join_memory, cell, mode), flatten_loop(cell, job, list(own)))
                y, *last = run_prepared(scan, call)
                state = tuple(last)
        return y, tuple(s.to(dtype) for s, dtype in zip(state, state_types, strict=True))


def _call(
    function: Callable[..., tuple[Tensor, ...]], x: Tensor, state: Tensor | list[Tensor], weights: list[Tensor]
) -> tuple[Tensor, ...]:
    """Call one of torch's fused functions for one layer in one direction, batch first."""
    has_bias, layers, dropout, bidirectional, batch_first = len(weights) >= 4, 1, 0.0, False, True
    train = torch.is_grad_enabled() or is_traced()  # a trace may be trained later
    return function(x, state, weights, has_bias, layers, dropout, train, bidirectional, batch_first)


def _cut_outputs(y: Tensor, h: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the outputs with 0 at padding, and each row's last real one; h for a row without steps."""
    if lengths is None:
        return y, clone_part(y[:, -1])
    index = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, y.shape[2])
    last = torch.where((lengths > 0).unsqueeze(1), y.gather(1, index).squeeze(1), h)
    return zero_padding(y, lengths), last


def _run_lstm(
    cell: Cell, x: Tensor, state: State, weights: list[Tensor], lengths: Tensor | None
) -> tuple[Tensor, State]:
    if lengths is None:
        return _run_equal(x, state, weights)
    if x.is_cuda:
        return _run_held(cell, x, state, weights, lengths)
    return _run_pieces(x, state, weights, lengths)


def _run_equal(x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
    """Run the LSTM over rows of equal lengths."""
    y, h, c = _call(torch._VF.lstm, x, [s.unsqueeze(0).contiguous() for s in state], weights)
    return y, (h.squeeze(0), c.squeeze(0))


def _run_held(cell: Cell, x: Tensor, state: State, weights: list[Tensor], lengths: Tensor) -> tuple[Tensor, State]:
    """Run the LSTM with one more input feature, 1 at padding, whose weights make i = 0 and f = 1 there."""
    w_ih, *others = weights
    i, f, rest = (w_ih.new_full((cell.hidden_size * n, 1), v) for n, v in ((1, -SATURATED), (1, SATURATED), (2, 0.0)))
    wide = [torch.cat([w_ih, torch.cat([i, f, rest])], 1), *(w.clone() for w in others)]
    if x.is_cuda and torch.backends.cudnn.enabled:
        with torch.no_grad():
            flatten_weights(cell, "LSTM", wide, 1)
    past = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
    y, (_, c) = _run_equal(torch.cat([x, past.unsqueeze(-1).to(x.dtype)], -1), state, wide)
    y, h = _cut_outputs(y, state[0], lengths)
    return y, (h, c)


def _run_pieces(x: Tensor, state: State, weights: list[Tensor], lengths: Tensor) -> tuple[Tensor, State]:
    """Run the LSTM from one row's end to the next, each time without the rows that have ended."""
    order = torch.argsort(lengths, descending=True, stable=True)
    ends = lengths[order].tolist()
    x, now = x[order], tuple(s[order] for s in state)
    pieces, ended, t, rows = [], [], 0, len(ends)
    for end in sorted(set(ends)):
        if end > t:
            y, now = _run_equal(x[:rows, t:end], now, weights)
            pieces.append(F.pad(y, (0, 0, 0, 0, 0, len(ends) - rows)))
            t = end
        left = sum(e > end for e in ends)
        ended.append(tuple(s[left:rows] for s in now))
        now, rows = tuple(s[:left] for s in now), left
    pieces.append(x.new_zeros(len(ends), x.shape[1] - t, state[0].shape[1]))
    back = torch.argsort(order)
    last = (torch.cat(parts[::-1])[back] for parts in zip(*ended, strict=True))
    return torch.cat(pieces, 1)[back], tuple(last)
