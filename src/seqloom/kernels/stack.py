"""Run a stack of cells over sequences with the reference loop, for derivatives that a fused kernel lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob, reverse_steps
from seqloom.core.memory import empty, new_empty
from seqloom.core.weights import bind_weights
from seqloom.kernels import loop
from seqloom.kernels.autograd import Call, Gradients
from seqloom.kernels.fused import differentiate


def why_not_start(cell: Cell) -> str | None:
    """Return why a prepared call cannot make the first state of a cell; None if it can."""
    own = cell.__dict__
    if own.get("learned_states") or not {"start", "initial_state", "project"}.isdisjoint(own):
        return "the initial state is learned or computed"
    return None


@dataclass(frozen=True, eq=False)
class Stack:
    """A stack of cells and the form of its input.

    Attributes:
        cells: Layer by layer; with two directions each layer has a second cell, which reads the sequence in reverse.
        names: For each cell, the index of each of its weights among those of the stack, by the cell's name for it.
        shape: Of the input: (T, B, D), (B, T, D) with batch_first, or (T, D).
        batch_first: Whether the rows come before the steps.
        ways: Directions, 1 or 2.
    """

    cells: Sequence[Cell]
    names: Sequence[dict[str, int]]
    shape: torch.Size
    batch_first: bool
    ways: int

    @property
    def is_batch_first(self) -> bool:
        return self.batch_first and len(self.shape) == 3

    @property
    def T(self) -> int:
        return self.shape[self.is_batch_first]

    @property
    def B(self) -> int:
        return 1 if len(self.shape) == 2 else self.shape[not self.is_batch_first]

    @property
    def depth(self) -> int:
        """Return the number of layers that may run as one stack."""
        return len(self.cells) if self.ways == 1 else 1

    @property
    def state_shapes(self) -> list[torch.Size]:
        """Return the shape of each state in torch's form: (cells, B, H), or (cells, H) for a single sequence."""
        rows = () if len(self.shape) == 2 else (self.B,)
        states = self.cells[0].initial_state(empty(self.B, 1, device="cpu"))
        return [torch.Size((len(self.cells), *rows, *s.shape[1:])) for s in states]

    def start(self, like: Tensor) -> State:
        """Return the initial states in torch's form, of the type and on the device of a tensor."""
        starts = [cell.initial_state(new_empty(like, self.B, 1)) for cell in self.cells]
        parts = zip(zip(*starts, strict=True), self.state_shapes, strict=True)
        return tuple(torch.stack(part).view(shape) for part, shape in parts)

    def clear_padding(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Set an input, of `shape`, to 0 from each row's length on."""
        if lengths is None:
            return x
        steps = torch.arange(self.T, device=x.device)
        past = steps >= lengths[:, None] if self.is_batch_first or x.dim() == 2 else steps[:, None] >= lengths
        return x.masked_fill(past.view(*self.shape[:-1], 1), 0)

    def run(self, call: Call) -> list[Tensor]:
        """Run the stack with the loop, and return the output and the last states, in torch's form."""
        first, x = call.states or self.start(call.x), self.clear_padding(call.x, call.lengths)
        rows, reset = self._put_rows_first(x), call.reset if call.reset is None else self._put_rows_first(call.reset)
        ends: list[State] = []
        for begin in range(0, len(self.cells), self.ways):
            outputs = []
            for i in range(begin, begin + self.ways):
                values = {name: call.weights[place] for name, place in self.names[i].items()}
                job = ScanJob(rows, tuple(s[i].reshape(self.B, -1) for s in first), call.lengths, reset)
                y, end = loop.run(bind_weights(self.cells[i], values), job if i == begin else job.reverse())
                outputs.append(y if i == begin else reverse_steps(y, call.lengths))
                ends.append(end)
            rows = outputs[0] if self.ways == 1 else torch.cat(outputs, -1)
        y = rows if self.is_batch_first else rows.transpose(0, 1)
        pairs = zip(zip(*ends, strict=True), self.state_shapes, strict=True)
        return [y.reshape(*self.shape[:-1], -1), *(torch.stack(part).view(shape) for part, shape in pairs)]

    def _put_rows_first(self, t: Tensor) -> Tensor:
        return t.unsqueeze(0) if len(self.shape) == 2 else t if self.is_batch_first else t.transpose(0, 1)

    def find_gradients(self, call: Call, grads: Sequence[Tensor | None], dtype: torch.dtype | None = None) -> Gradients:
        """Return the gradients of a kernel's first derivative, in a form that can be differentiated again.

        Args:
            call: The kernel's inputs.
            grads: The gradients of the output and of the last states; None for those that do not matter.
            dtype: The type in which the kernel computes; default: that of x.
        """
        tensors = [call.x, *call.states, *call.starts, *call.weights]
        with torch.enable_grad():
            typed = call.name([None if t is None else t.to(dtype or call.x.dtype) for t in tensors])
            y, *ends = self.run(
                replace(call, x=typed.x, states=typed.states, starts=typed.starts, weights=typed.weights)
            )
            pulls = (None if d is None else d.to(o.dtype) for d, o in zip(grads, (y, *ends), strict=True))
        return call.name(differentiate(tensors, (y, *ends), tuple(pulls), True, True))

    def differentiate(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Any],  # Tensor; None for one that the cells lack
        grads: Sequence[Tensor | None],
        dtype: torch.dtype | None = None,
        lengths: Tensor | None = None,
    ) -> list[Tensor | None]:
        """Return the gradients of a kernel's first derivative, in a form that can be differentiated again.

        Args:
            x: The kernel's input, of `shape`.
            states: The first states, in torch's form; empty for the initial states.
            weights: All weights of the stack.
            grads: The gradients of the output and of the last states; None for those that do not matter.
            dtype: The type in which the kernel computes; default: that of x.
            lengths: (B,), the real steps of each row; None if all are real.

        Returns:
            The gradients of x, of the states and of the weights; None for those that are not needed.
        """
        found = self.find_gradients(Call(x, states, weights, lengths=lengths), grads, dtype)
        return [found.x, *found.states, *found.weights]


class ProjectedStack(Stack):
    """One cell over its projected input (B, T, P), with the states in the cell's form, as in a job."""

    @property
    def state_shapes(self) -> list[torch.Size]:
        """The shape of each state: (B, ...)."""
        return [s.shape for s in self.cells[0].initial_state(empty(self.B, 1, device="cpu"))]

    def run(self, call: Call) -> list[Tensor]:
        """Run the cell with the loop, and return the output and the last states."""
        view = bind_weights(self.cells[0], {name: call.weights[i] for name, i in self.names[0].items()})
        view.__dict__["project"] = lambda x: x
        view.__dict__["start"] = lambda _: tuple(call.starts)  # after a reset
        more = call.lengths, call.reset, call.dt, call.mask, tuple(call.keep)
        y, end = loop.run(view, ScanJob(call.x, tuple(call.states), *more))
        return [y, *end]
