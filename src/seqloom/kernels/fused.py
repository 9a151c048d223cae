"""Shared parts of fused kernels: when they cannot run, and second derivatives through the reference loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights
from seqloom.kernels import loop

RunKernel = Callable[[Tensor, State, dict[str, Tensor]], tuple[Tensor, State]]
Leaves = Callable[[Sequence[Tensor]], list[Tensor]]
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


def detach_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach() for t in tensors]


def run_fused(
    cell: Cell, job: ScanJob, own: Mapping[str, Tensor], run_kernel: RunKernel, leaves: Leaves = detach_all
) -> tuple[Tensor, State]:
    """Run a fused kernel, with higher derivatives through the reference loop.

    Args:
        cell: The cell.
        job: Its input.
        own: The cell's weights by name.
        run_kernel: Runs the kernel on input, state and weights, with a first derivative.
        leaves: Returns detached tensors with the values of input, state and weights, in the memory layout that the
            kernel needs.

    Returns:
        The outputs (B, T, H) and the last state.
    """
    names, k = list(own), len(job.state)

    def fast(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        y, state = run_kernel(x, rest[:k], dict(zip(names, rest[k:], strict=True)))
        return y, *state

    inputs = [job.x, *job.state, *own.values()]
    if is_traced():  # a trace cannot record _Twice, and would record a detached weight as a constant
        y, *state = fast(*inputs)
    elif torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        y, *state = _Twice.apply(leaves, fast, flatten_loop(cell, job, names), *inputs)
    else:
        y, *state = fast(*leaves(inputs))
    return y, tuple(state)


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


class _Twice(torch.autograd.Function):
    """First derivative by the fused kernel's backward, higher ones through the reference loop."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        leaves: Leaves,
        fast: Flat,
        slow: Flat,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        inputs = leaves(tensors)
        with torch.enable_grad():
            for leaf, t in zip(inputs, tensors, strict=True):
                leaf.requires_grad_(t.requires_grad)
            outputs = fast(*inputs)
        ctx.slow, ctx.inner = slow, (inputs, outputs)
        ctx.save_for_backward(*tensors)
        return tuple(o.detach() for o in outputs)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        *grads: Tensor,
    ) -> tuple[Tensor | None, ...]:
        again, keep = torch.is_grad_enabled(), torch._C._autograd._get_current_graph_task_keep_graph()
        if again or ctx.inner is None:  # if freed, reading saved_tensors raises torch's error
            inputs = read_saved(ctx)
            outputs = ctx.slow(*inputs)
        else:
            inputs, outputs = ctx.inner
        if not keep:
            ctx.inner = None  # otherwise a reference to the loss would keep everything that the kernel saved
        return None, None, None, *differentiate(inputs, outputs, grads, keep, again)


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
