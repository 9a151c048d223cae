"""A prepared call of torch's fused operators: a whole stack of cells in one call, as in torch.nn's layers.

The gradient is torch's own node. cuDNN's has no second derivative: when one is asked for, a hook on the node replaces
its gradients by those of the reference loop. Operators for CPUs have their own backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.kernels import heuristics
from seqloom.kernels.aten.cudnn import cudnn_mode, has_one_storage, parameter_names
from seqloom.kernels.current_stream import find_stream
from seqloom.kernels.stack import Stack, why_not_start

# Nodes without a second derivative. Their inputs are x, the weights, h and, for an LSTM, c.
FUSED_NODES = frozenset({"CudnnRnnBackward0", "MiopenRnnBackward0"})


def why_not_plan(cells: Sequence[Cell], weights: Sequence[Tensor]) -> str | None:
    """Return why a stack of cells cannot run as a single call of torch; None if it can."""
    device = weights[0].device
    cell = cells[0]
    if cudnn_mode(cell) not in ("GRU", "LSTM", "RNN_TANH", "RNN_RELU"):
        return f"torch has no fused operator for cell {cell.name or type(cell).__name__!r}"
    if len({cudnn_mode(c) for c in cells}) > 1 or len({getattr(c, "proj_size", 0) for c in cells}) > 1:
        return "the cells of the stack differ"
    if device.type == "cuda" and torch.backends.cudnn.enabled and not has_one_storage(weights):
        return "cuDNN would copy the weights at every call, with a warning"
    return next(filter(None, map(why_not_start, cells)), None)


class AtenPlan:
    """Run a stack of RNN, GRU or LSTM cells with one call of torch.

    Args:
        stack: The cells, and the form of the input.
        weights: All weights of the stack.
        dropout: Share of the outputs of every layer but the last that torch drops, also without gradients.
        amp: The type that autocast computes in, and to which torch casts its arguments; None without autocast.
    """

    backend, may_cover = "aten", False

    def __init__(
        self, stack: Stack, weights: Sequence[Tensor], dropout: float = 0.0, amp: torch.dtype | None = None
    ) -> None:
        cell = stack.cells[0]
        self.amp = amp
        self.dropout = dropout
        self.stack, self.h_shapes = stack, stack.state_shapes
        self.h_shape, self.states = self.h_shapes[0], len(self.h_shapes)
        names = [parameter_names(c) for c in stack.cells]
        self.order = [stack.names[i][name] for i, own in enumerate(names) for name in own]
        self.has_bias = "bias_ih" in names[0]
        self.function: Callable[..., tuple[Tensor, ...]] = getattr(torch._VF, cudnn_mode(cell).lower())
        self.layers, self.is_bidirectional = len(stack.cells) // stack.ways, stack.ways == 2
        self.is_cpu = weights[0].device.type == "cpu"
        self.is_lstm = self.states == 2
        self.is_single = len(stack.shape) == 2
        # the CPU operator would transpose to time-first itself, in separate nodes
        self.transposes = self.is_cpu and stack.is_batch_first
        self.batch_first = stack.is_batch_first and not self.transposes
        # the form for training, which does not rearrange the weights
        self.is_step = self.is_cpu and stack.T == 1 and cell.hidden_size < heuristics.TRAINING_FORM_HIDDEN
        self.in_order = self.order == list(range(len(weights)))
        shapes = [(len(stack.cells), stack.B, shape[-1]) for shape in self.h_shapes]
        self.start_shapes = shapes
        self.start: list[Tensor] = []
        self.stream = find_stream(weights[0].device)
        if self.stream is not None:
            self.start = self._make_start(weights[0])

    def run(self, x: Tensor, states: Sequence[Tensor], weights: list[Tensor], train: bool) -> tuple[Tensor, Any]:
        """Run the stack.

        Args:
            x: Of the plan's shape and type, contiguous.
            states: h, or h and c, in torch's form and contiguous; empty for the initial state.
            weights: All weights of the stack.
            train: Whether a gradient is needed.

        Returns:
            The output and the last state, in torch's form.
        """
        source, first = x, states
        if self.is_single:
            x, states = x.unsqueeze(1), [s.unsqueeze(1) for s in states]
        elif self.transposes:
            x = x.transpose(0, 1)
        if not states:  # zeros of another stream may not be ready; those of a captured graph belong to the graph
            is_ready = self.start and self.stream == find_stream(x.device)
            states = self.start if is_ready else self._make_start(x)
        flat = weights if self.in_order else [weights[i] for i in self.order]
        hx = states if self.is_lstm else states[0]
        mode = train or self.is_step or self.dropout > 0
        settings = self.has_bias, self.layers, self.dropout, mode, self.is_bidirectional, self.batch_first
        y, *end = self.function(x, hx, flat, *settings)
        # the loop does not know which values cuDNN dropped: torch refuses second derivatives
        if train and not self.is_cpu and not self.dropout:
            node = y.grad_fn
            if node is not None and node.name() in FUSED_NODES:
                node.register_hook(self._differentiate_twice(source, first, weights))
        if self.amp is not None:
            end = [s.to(weights[0].dtype) for s in end]
        if self.is_single:
            y, end = y.squeeze(1), [s.squeeze(1) for s in end]
        elif self.transposes:
            y = y.transpose(0, 1)
        return y, tuple(end) if self.is_lstm else end[0]

    def _make_start(self, like: Tensor) -> list[Tensor]:
        """Return the initial state: one tensor of zeros for h and c, which is never changed."""
        with torch.inference_mode(False):  # shared by calls that save it for their backward pass
            zeros = {shape: torch.zeros(shape, dtype=like.dtype, device=like.device) for shape in self.start_shapes}
        return [zeros[shape] for shape in self.start_shapes]

    def _differentiate_twice(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...] | None]:
        """Return a hook that computes the gradients with the loop if they must be differentiable."""

        def hook(gradients: Sequence[Any], grads: Sequence[Any]) -> tuple[Any, ...] | None:
            if not torch.is_grad_enabled():
                return None
            dy = grads[0]
            if dy is not None:
                dy = dy.squeeze(1) if self.is_single else dy.transpose(0, 1) if self.transposes else dy
            ends = [None if d is None else d.view(shape) for d, shape in zip(grads[1:], self.h_shapes, strict=False)]
            pulls = (dy, *ends, *([None] * (len(self.h_shapes) - len(ends))))
            dx, *rest = self.stack.differentiate(x, states, weights, pulls, self.amp)
            if dx is not None:
                dx = dx.unsqueeze(1) if self.is_single else dx.transpose(0, 1) if self.transposes else dx
            k = len(states)
            own = [rest[k + place] for place in self.order]
            found = [dx, *own, *rest[:k], *([None] * len(gradients))]
            return tuple(
                None if old is None or new is None else new.view(old.shape).to(old.dtype)
                for new, old in zip(found, gradients, strict=False)
            )

        return hook
