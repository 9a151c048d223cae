"""Prepared calls of a stack of cells, one graph node per cell, or on kernels that were chosen in advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.job import ScanJob, reverse_steps, zero_padding
from seqloom.kernels.autograd import Call, run_prepared
from seqloom.kernels.cuda.runtime.prepared_cell import PreparedCell
from seqloom.kernels.dispatch import Choice
from seqloom.kernels.registry import Kernel
from seqloom.kernels.stack import Stack


class StackPlan:
    """Run a stack of prepared cells over inputs of one shape.

    Args:
        stack: The cells, and the form of the input.
        cells: Each of them, prepared.
        backend: The name of the first cell's kernel.
        dropout: Share of the outputs of every layer but the last that is dropped.
        may_cover: Whether calls of other shapes are faster padded to this one than on their own.
    """

    def __init__(
        self,
        stack: Stack,
        cells: Sequence[PreparedCell],
        backend: str,
        dropout: float = 0.0,
        may_cover: bool = False,
    ) -> None:
        self.cells, self.backend, self.dropout, self.may_cover = cells, backend, dropout, may_cover
        self.h_shapes, self.B, self.T, self.ways = stack.state_shapes, stack.B, stack.T, stack.ways

    def run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        train: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Run the stack; the arguments and results are those of `PreparedStack.run` (`kernels/cpu/prepared.py`)."""
        ends = []
        for begin in range(0, len(self.cells), self.ways):
            if begin and self.dropout:
                x = F.dropout(x, self.dropout)
            outputs = []
            for i in range(begin, begin + self.ways):
                cell = self.cells[i]
                own = [s[i : i + 1] for s in states] if len(self.cells) > 1 else states
                call = Call(x, own, cell.find_weights(weights), lengths=lengths, train=train)
                y, *end = run_prepared(cell, call)
                outputs.append(y)
                ends.append(end)
            x = outputs[0] if self.ways == 1 else torch.cat(outputs, -1)
        last = ends[0] if len(ends) == 1 else [torch.cat(parts) for parts in zip(*ends, strict=True)]
        return x, last[0] if len(last) == 1 else tuple(last)


class KernelPlan:
    """Run a stack on kernels that were chosen in advance.

    Args:
        stack: The cells, and the form of the input.
        kernels: One for each cell, or what was chosen for it.
        types: Under autocast, the type of the weights (also of a cell's inputs and states) and the type of the outputs.
        dropout: Share of the outputs of every layer but the last that is dropped.
    """

    may_cover = False

    def __init__(
        self,
        stack: Stack,
        kernels: Sequence[Kernel | Choice],
        types: tuple[torch.dtype, torch.dtype] | None = None,
        dropout: float = 0.0,
    ) -> None:
        self.types, self.dropout, self.ways = types, dropout, stack.ways
        self.backend, self.h_shapes, self.B, self.T = kernels[0].backend, stack.state_shapes, stack.B, stack.T
        self.is_single, self.is_batch_first = len(stack.shape) == 2, stack.is_batch_first
        self.scans = [(cell, kernel.run) for cell, kernel in zip(stack.cells, kernels, strict=True)]

    def run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: list[Tensor],
        train: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Run the stack; the arguments and results are those of `PreparedStack.run`."""
        y = x.unsqueeze(0) if self.is_single else x if self.is_batch_first else x.transpose(0, 1)
        y = zero_padding(y, lengths)
        if self.is_single:
            states = [s.unsqueeze(1) for s in states]
        ends: list[State] = []
        for begin in range(0, len(self.scans), self.ways):
            if self.types is not None:
                y = y.to(self.types[0])
            if begin and self.dropout:
                y = F.dropout(y, self.dropout)
            outputs = []
            for i in range(begin, begin + self.ways):
                cell, run = self.scans[i]
                state = tuple(s[i] for s in states) if states else cell.start(y)
                job = ScanJob(y, state, lengths)
                out, end = run(cell, job if i == begin else job.reverse())
                outputs.append(out if i == begin else reverse_steps(out, lengths))
                ends.append(end)
            y = outputs[0] if self.ways == 1 else torch.cat(outputs, -1)
        if len(ends) == 1:
            last = ends[0] if self.is_single else tuple(s.unsqueeze(0) for s in ends[0])
        else:
            last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
            last = tuple(s.squeeze(1) for s in last) if self.is_single else last
        y = y if self.types is None else y.to(self.types[1])
        y = y.squeeze(0) if self.is_single else y if self.is_batch_first else y.transpose(0, 1).contiguous()
        return y, last[0] if len(last) == 1 else last
