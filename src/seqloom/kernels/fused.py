"""Shared parts of fused kernels: when they cannot run, and second derivatives through the reference loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights
from seqloom.kernels import loop
from seqloom.kernels.autograd import Call, Gradients

Flat = Callable[..., tuple[Tensor, ...]]  # input, states and weights to outputs and states


def why_not_fused() -> str | None:
    """Return why a kernel that needs addresses or a fixed length cannot run now; None if it can."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "fused kernels support neither vmap nor forward-mode derivatives"
    if torch.compiler.is_exporting():
        return "an exported fused kernel would accept one length only"
    return None


def is_traced() -> bool:
    """Return whether torch.jit.trace is recording."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def why_not_counted() -> str | None:
    """Return why fused kernels must not run while torch's FlopCounterMode counts; None if it does not."""
    modes = _get_current_dispatch_mode_stack() if torch._C._len_torch_dispatch_stack() else []
    if any(type(mode).__module__ == "torch.utils.flop_counter" for mode in modes):
        return "FlopCounterMode is active, and counts the operations of torch's own operators alone"
    return None


def flatten_loop(cell: Cell, job: ScanJob, names: Sequence[str], states: int | None = None) -> Flat:
    """Return the reference loop as a function of input, states, the cell's tensors of these names and, if given, dt.

    Args:
        cell: The cell.
        job: What it runs over.
        names: The names of the tensors.
        states: How many states are given: 0 for those of the job; all of them by default.
    """
    k = len(job.state) if states is None else states
    end = k + len(names)

    def slow(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        view = bind_weights(cell, dict(zip(names, rest[k:end], strict=True)))
        dt = rest[end] if len(rest) > end else job.dt
        before = rest[:k] or job.state
        y, state = loop.run(view, replace(job, x=x, state=tuple(s.to(x.dtype) for s in before), dt=dt))
        return y, *(s.to(t.dtype) for s, t in zip(state, before, strict=True))  # may be more precise than x

    return slow


@dataclass
class Graph:
    """What torch's operators computed.

    Attributes:
        leaves: Its inputs.
        outputs: Its outputs.
    """

    leaves: list[Any]
    outputs: tuple[Tensor, ...]


class SavedGraph(NamedTuple):
    """What a backward pass needs of a forward pass by torch's operators."""

    graph: Any  # Graph


@dataclass(frozen=True)
class TorchScan:
    """A scan by torch's operators, with higher derivatives through the reference loop: a `Prepared` (`autograd.py`).

    Attributes:
        run: Maps the input, the states and the weights to the outputs and the last states.
        arrange: Maps detached weights to the same in the memory layout that `run` needs.
        slow: What `flatten_loop` returns.
    """

    run: Callable[[Tensor, State, list[Tensor]], tuple[Tensor, State]]
    arrange: Callable[[list[Tensor]], list[Tensor]]
    slow: Flat

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], SavedGraph | None]:
        """Return the outputs and the last states, and their graph."""
        first = [t.detach() for t in (call.x, *call.states)]
        leaves = [*first, *self.arrange([w.detach() for w in call.weights])]
        if not call.train:
            return self._run(leaves, len(first)), None
        with torch.enable_grad():
            for leaf, t in zip(leaves, call.tensors, strict=True):
                leaf.requires_grad_(t.requires_grad)
            outputs = self._run(leaves, len(first))
        return tuple(o.detach() for o in outputs), SavedGraph(Graph(leaves, outputs))

    def _run(self, leaves: list[Tensor], count: int) -> tuple[Tensor, ...]:
        y, state = self.run(leaves[0], tuple(leaves[1:count]), leaves[count:])
        return y, *state

    def backward(self, call: Call, saved: SavedGraph, grads: Sequence[Tensor | None], needs: Gradients) -> Gradients:
        """Return the gradients by the graph."""
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        graph = saved.graph
        return call.name(differentiate(graph.leaves, graph.outputs, grads, keep, again=False))

    def differentiate(self, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
        """Return the gradients with a graph, by the reference loop."""
        return differentiate_loop(self.slow, call, grads)


def differentiate_loop(slow: Flat, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
    """Return the gradients of a call with a graph, by the function that `flatten_loop` returned."""
    with torch.enable_grad():
        outputs = slow(*call.tensors)
    return call.name(differentiate(call.tensors, outputs, grads, keep=True, again=True))


def differentiate(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], grads: Sequence[Tensor | None], keep: bool, again: bool
) -> list[Tensor | None]:
    """Return the gradients of inputs from those of outputs.

    Args:
        inputs: Tensors of which some require gradients; None for those that a cell lacks.
        outputs: What was computed from them.
        grads: The gradients of the outputs; None for those that do not matter.
        keep: Whether the graph is kept.
        again: Whether the gradients can be differentiated again.
    """
    leaves = [t for t in inputs if t is not None and t.requires_grad]
    pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad and g is not None]
    ends, pulls = [o for o, _ in pairs], [g for _, g in pairs]
    gradients = iter(run_backward(ends, leaves, pulls, keep, again))
    return [next(gradients) if t is not None and t.requires_grad else None for t in inputs]


def run_backward(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor], keep: bool, again: bool = False
) -> Sequence[Tensor | None]:
    """Return the gradients of inputs as `torch.autograd.grad` does, without its checks.

    The checks import sympy, which takes 0.5 s of a first call, and cost each call about 50 microseconds.
    """
    engine = torch.autograd.Variable._execution_engine
    gradients: Sequence[Tensor | None] = engine.run_backward(
        tuple(outputs), tuple(grads), keep, again, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return gradients
