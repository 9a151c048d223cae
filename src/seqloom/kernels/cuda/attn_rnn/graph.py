"""AttnRNN on an NVIDIA GPU, for any size and type: a CUDA graph of torch's products and fused kernels between them.

Each pass has six launches per step, recorded once for a chunk of steps and replayed for every chunk. The forward pass
saves only the outputs; the backward pass recomputes the intermediates of a chunk, and accumulates the gradients of the
weights chunk by chunk. With slots the graph consists of plain torch operators, and the states are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty, empty_like
from seqloom.kernels import heuristics
from seqloom.kernels.autograd import Call, Gradients
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.cuda.attn_rnn.graph_chunks import (
    BackwardChunk,
    ForwardChunk,
    SlotsBackwardChunk,
    SlotsForwardChunk,
)
from seqloom.kernels.cuda.attn_rnn.manual import States
from seqloom.kernels.cuda.attn_rnn.setting import TYPES, AttnRNNSetting
from seqloom.kernels.cuda.runtime.graphs import record
from seqloom.kernels.stack import Stack


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return why this cell or job cannot run here; None if it can."""
    return scan.why_not(cell, job, TYPES, heads=32, slots=cell.slots)


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Run the cell over the job's sequences."""
    setting = scan.read_setting(cell, job)
    return scan.run_job(lambda stack: GraphScan(setting, stack), cell, job)


def _find_chunk(
    kinds: tuple[type, type], setting: AttnRNNSetting, u: Tensor
) -> AbstractContextManager[tuple[Any, Callable[[], None]]]:
    """Provide the recorded chunk (of the second class with several slots) and the function that replays it."""
    (B, T, _), m = u.shape, setting.slots
    kind: Any = kinds[m > 1]
    steps = min(max(4, heuristics.GRAPH_STEPS // m), 1 << (T - 1).bit_length())  # a slot takes the memory of a step
    return record((kind, setting, B, steps, u.device), lambda: kind(setting, B, steps, u.device))


def _count_left(lengths: Tensor | None, u: Tensor, steps: int) -> Tensor:
    """Return the number of steps of each row in each chunk: (chunks, B)."""
    B, T, _ = u.shape
    begins = torch.arange(0, T, steps, device=u.device).unsqueeze(1)
    ends = torch.full((B,), T, device=u.device) if lengths is None else lengths.clamp(max=T)
    return (ends - begins).clamp(0, steps).to(torch.int32)


class GraphScan(NamedTuple):
    """The passes of a projected input (`Prepared` of `../../autograd.py`)."""

    setting: AttnRNNSetting
    stack: Stack

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], States]:
        """Return the outputs (B, T, H), the last state in float32, and the states after all steps."""
        u, (h0,) = call.x, call.states
        (B, T), m = u.shape[:2], self.setting.slots
        with _find_chunk((ForwardChunk, SlotsForwardChunk), self.setting, u) as (chunk, replay):
            chunk.load(call)
            chunk.h.copy_(h0)
            left = _count_left(call.lengths, u, chunk.steps)
            states = empty(B, T, *h0.shape[1:], dtype=chunk.y.dtype, device=u.device)
            for k, begin in enumerate(range(0, T, chunk.steps)):
                n = min(chunk.steps, T - begin)
                chunk.take(call, left[k], begin, n)
                replay()
                states[:, begin : begin + n].copy_(chunk.y[:n].transpose(0, 1))
            last = chunk.h.clone()
        return (states if m == 1 else states.sum(2).to(u.dtype), last), States(states)

    def backward(self, call: Call, saved: States, grads: Sequence[Tensor | None], needs: Gradients) -> Gradients:
        """Return the gradients, chunk by chunk of time."""
        u, (h0,), (dy, dlast), own = call.x, call.states, grads, scan.AttnRNNWeights(*call.weights)
        dy = torch.zeros_like(u) if dy is None else dy
        with _find_chunk((BackwardChunk, SlotsBackwardChunk), self.setting, u) as (chunk, replay):
            chunk.load(call)
            chunk.clear(torch.zeros_like(h0) if dlast is None else dlast)
            left = _count_left(call.lengths, u, chunk.steps)
            du = empty_like(u, memory_format=torch.contiguous_format)
            for k, begin in reversed(list(enumerate(range(0, u.shape[1], chunk.steps)))):
                n = min(chunk.steps, u.shape[1] - begin)
                chunk.take(call, left[k], begin, n)
                chunk.take_back(h0, saved.states, dy, begin, n)
                replay()
                du[:, begin : begin + n].copy_(chunk.du[:n].transpose(0, 1))
            pairs = zip(own.recurrent, chunk.gradients, strict=True)
            gradients = scan.AttnRNNWeights(*(None if w is None else d.to(w.dtype, copy=True) for w, d in pairs))
            dstart = (chunk.dstart.clone(),) if call.starts else ()
            return Gradients(du, (chunk.dh.clone(),), gradients, dstart)

    def differentiate(self, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
        """Return the gradients computed by the loop."""
        return scan.differentiate(self.stack, call, grads)
