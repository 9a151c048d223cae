"""torch's own fused LSTM (oneDNN on a CPU, cuDNN on a GPU)."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._aten import run_fused, why_not_aten

why_not = why_not_aten


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def whole(x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        has_bias, train, batch_first = cell.bias_ih is not None, torch.is_grad_enabled(), True
        before = [s.unsqueeze(0).contiguous() for s in state]
        y, h, c = torch._VF.lstm(x, before, weights, has_bias, 1, 0.0, train, False, batch_first)
        return y, (h.squeeze(0), c.squeeze(0))

    def fused(x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        if job.lengths is None:
            return whole(x, state, weights)
        return by_length(x, state, weights)

    def by_length(x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        """torch returns c of the last step only: rows leave, longest last, where they end."""
        assert job.lengths is not None
        order = torch.argsort(job.lengths, descending=True, stable=True)
        ends = job.lengths[order].tolist()
        x, now = x[order], tuple(s[order] for s in state)
        pieces, gone, t, rows = [], [], 0, len(ends)
        for end in sorted(set(ends)):
            if end > t:
                y, now = whole(x[:rows, t:end], now, weights)
                pieces.append(torch.nn.functional.pad(y, (0, 0, 0, 0, 0, len(ends) - rows)))
                t = end
            stay = sum(e > end for e in ends)
            gone.append(tuple(s[stay:rows] for s in now))
            now, rows = tuple(s[:stay] for s in now), stay
        pieces.append(x.new_zeros(len(ends), x.shape[1] - t, state[0].shape[1]))
        back = torch.argsort(order)
        last = (torch.cat(parts[::-1])[back] for parts in zip(*gone, strict=True))
        return torch.cat(pieces, 1)[back], tuple(last)

    return run_fused(cell, job, "LSTM", fused)
