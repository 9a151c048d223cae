"""A prepared call of kernels that were chosen before, one for each layer of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.job import ScanJob
from seqloom.kernels.registry import Kernel
from seqloom.kernels.stack import Stack


class KernelPlan:
    """Run a stack in one direction on kernels that were chosen before.

    Args:
        stack: The cells, and the form of the input.
        kernels: One for each cell.
        types: Under autocast the type of the weights, which inputs and states of a cell have, and that of the outputs.
    """

    def __init__(
        self, stack: Stack, kernels: Sequence[Kernel], types: tuple[torch.dtype, torch.dtype] | None = None
    ) -> None:
        self.types = types
        self.backend, self.h_shapes, self.rows = kernels[0].backend, stack.state_shapes, stack.B
        self.is_single, self.is_batch_first = len(stack.shape) == 2, stack.is_batch_first
        self.scans = [(cell, kernel.code.run) for cell, kernel in zip(stack.cells, kernels, strict=True)]

    def run(self, x: Tensor, states: Sequence[Tensor], weights: list[Tensor], train: bool) -> tuple[Tensor, Any]:
        """Run the stack; the arguments and results are those of `StackPlan.run`."""
        y = x.unsqueeze(0) if self.is_single else x if self.is_batch_first else x.transpose(0, 1)
        if self.is_single:
            states = [s.unsqueeze(1) for s in states]
        ends: list[State] = []
        for i, (cell, run) in enumerate(self.scans):
            if self.types is not None:
                y = y.to(self.types[0])
            state = tuple(s[i] for s in states) if states else cell.start(y)
            y, end = run(cell, ScanJob(y, state))
            ends.append(end)
        if len(ends) == 1:
            last = ends[0] if self.is_single else tuple(s.unsqueeze(0) for s in ends[0])
        else:
            last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
            last = tuple(s.squeeze(1) for s in last) if self.is_single else last
        y = y if self.types is None else y.to(self.types[1])
        y = y.squeeze(0) if self.is_single else y if self.is_batch_first else y.transpose(0, 1).contiguous()
        return y, last[0] if len(last) == 1 else last
