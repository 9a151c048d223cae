"""torch's own fused LSTM (oneDNN on a CPU, cuDNN on a GPU).

torch returns c of the last step alone. Where rows end earlier, a CPU cuts them out, and so computes real steps alone; a
GPU, whose host should neither wait for the lengths nor launch a kernel for each, holds c still past a row's end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels.aten.common import at_lengths, run_aten, why_not_aten
from seqloom.kernels.aten.cudnn import flatten_weights

SHUT = 1e4  # a gate's sum that is far beyond what a sigmoid tells from 0 or 1, in every type

why_not = why_not_aten


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        if job.lengths is None:
            return _whole(x, state, weights)
        if x.is_cuda:
            return _held(cell, x, state, weights, job.lengths)
        return _cut(x, state, weights, job.lengths)

    return run_aten(cell, job, "LSTM", fused)


def _whole(x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
    has_bias, train, batch_first = len(weights) >= 4, torch.is_grad_enabled(), True
    before = [s.unsqueeze(0).contiguous() for s in state]
    y, h, c = torch._VF.lstm(x, before, weights, has_bias, 1, 0.0, train, False, batch_first)
    return y, (h.squeeze(0), c.squeeze(0))


def _held(cell: Cell, x: Tensor, state: State, weights: list[Tensor], lengths: Tensor) -> tuple[Tensor, State]:
    """One more feature is 1 past a row's length, with weights that make i = 0 and f = 1 there."""
    w_ih, *others = weights
    i, f, rest = (w_ih.new_full((cell.hidden_size * n, 1), v) for n, v in ((1, -SHUT), (1, SHUT), (2, 0.0)))
    wide = [torch.cat([w_ih, torch.cat([i, f, rest])], 1), *(w.clone() for w in others)]
    if x.is_cuda and torch.backends.cudnn.enabled:
        with torch.no_grad():
            flatten_weights(cell, "LSTM", wide, 1)
    past = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
    y, (_, c) = _whole(torch.cat([x, past.unsqueeze(-1).to(x.dtype)], -1), state, wide)
    y, h = at_lengths(y, state[0], lengths)
    return y, (h, c)


def _cut(x: Tensor, state: State, weights: list[Tensor], lengths: Tensor) -> tuple[Tensor, State]:
    """Rows leave, longest last, where they end."""
    order = torch.argsort(lengths, descending=True, stable=True)
    ends = lengths[order].tolist()
    x, now = x[order], tuple(s[order] for s in state)
    pieces, gone, t, rows = [], [], 0, len(ends)
    for end in sorted(set(ends)):
        if end > t:
            y, now = _whole(x[:rows, t:end], now, weights)
            pieces.append(torch.nn.functional.pad(y, (0, 0, 0, 0, 0, len(ends) - rows)))
            t = end
        stay = sum(e > end for e in ends)
        gone.append(tuple(s[stay:rows] for s in now))
        now, rows = tuple(s[:stay] for s in now), stay
    pieces.append(x.new_zeros(len(ends), x.shape[1] - t, state[0].shape[1]))
    back = torch.argsort(order)
    last = (torch.cat(parts[::-1])[back] for parts in zip(*gone, strict=True))
    return torch.cat(pieces, 1)[back], tuple(last)
