"""A scan as one torch operator, so that torch.compile neither unrolls the loop nor breaks the graph.

The weights are arguments; an integer handle of the cell identifies the equations. The backward pass repeats the scan
with gradients, so a graph saves only the scan's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from seqloom.compiler.draws import read_random_state
from seqloom.core.cell import Cell, State, by_handle
from seqloom.core.checks import read_saved
from seqloom.core.errors import UserError
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype, useful_autocast
from seqloom.core.weights import bind_weights, weights
from seqloom.kernels.dispatch import choose

Maybe = Tensor | None


def scan_in_graph(cell: Cell, job: ScanJob, kernel: str, values: Mapping[str, Tensor]) -> tuple[Tensor, State]:
    """Run a job as an operator, while torch.compile traces."""
    amp = autocast_dtype(job.x.device.type)
    own = list((weights(cell) | dict(values)).values())
    more = [job.lengths, job.reset, job.dt, job.mask]
    y, *state = scan_op(cell.handle, kernel, amp, job.x, list(job.state), own, *more, list(job.keep))
    return y, tuple(state)


@torch.library.custom_op("seqloom::scan", mutates_args=())
def scan_op(
    cell: int,
    kernel: str,
    amp: torch.dtype | None,
    x: Tensor,
    state: list[Tensor],
    own: list[Tensor],
    lengths: Maybe,
    reset: Maybe,
    dt: Maybe,
    mask: Maybe,
    keep: list[Tensor],
) -> list[Tensor]:
    job = ScanJob(x, tuple(state), lengths, reset, dt, mask, tuple(keep))
    with torch.no_grad():
        return [_copy(t) for t in _run(cell, kernel, amp, job, own)]


@torch.library.custom_op("seqloom::scan_backward", mutates_args=())
def scan_backward(
    grads: list[Tensor],
    cell: int,
    kernel: str,
    amp: torch.dtype | None,
    x: Tensor,
    state: list[Tensor],
    own: list[Tensor],
    lengths: Maybe,
    reset: Maybe,
    dt: Maybe,
    mask: Maybe,
    keep: list[Tensor],
) -> list[Tensor]:
    """Return the gradients of x, the states and the weights; zeros where there is none."""
    with torch.enable_grad(), _enable_autograd():
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in (x, *state, *own)]
        x, state, own = leaves[0], leaves[1 : 1 + len(state)], leaves[1 + len(state) :]
        job = ScanJob(x, tuple(state), lengths, reset, dt, mask, tuple(keep))
        outputs = _run_again(cell, kernel, amp, job, own)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
        inputs = [t for t in leaves if t.requires_grad]
        computed = iter(torch.autograd.grad([o for o, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True))
        gradients = [next(computed) if t.requires_grad else None for t in leaves]
    return [_copy(torch.zeros_like(t) if g is None else g) for t, g in zip(leaves, gradients, strict=True)]


def _copy(t: Tensor) -> Tensor:
    """Copy an output: an operator may not return views, and its layout must match `register_fake`."""
    return t.detach().clone(memory_format=torch.contiguous_format)


def _enable_autograd() -> AbstractContextManager[None]:
    """Switch autograd back on, which torch switches off inside an operator."""
    return torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)


def _run(cell: int, kernel: str, amp: torch.dtype | None, job: ScanJob, own: list[Tensor]) -> list[Tensor]:
    from seqloom.kernels.scan import compiling

    home = by_handle[cell]
    view = bind_weights(home, dict(zip(weights(home), own, strict=True)))
    view.handle = home.handle
    before, compiling.active = compiling.active, True
    try:
        device = job.x.device.type
        with torch.autocast(device, dtype=amp) if amp else nullcontext(), useful_autocast(device):
            y, state = choose(view, job, kernel).run(view, job)
    finally:
        compiling.active = before
    return [y.to(amp or job.x.dtype), *state]


def _run_again(cell: int, kernel: str, amp: torch.dtype | None, job: ScanJob, own: list[Tensor]) -> list[Tensor]:
    """Repeat the forward pass; refuse a step that draws random numbers, since it would draw others."""
    if job.x.is_cuda and torch.cuda.is_current_stream_capturing():
        return _run(cell, kernel, amp, job, own)  # the same call has run before the recording
    before = read_random_state(job.x.device)
    outputs = _run(cell, kernel, amp, job, own)
    if not torch.equal(before, read_random_state(job.x.device)):
        raise UserError(
            f"the step of {type(by_handle[cell]).__name__} draws random numbers, and in a graph of torch.compile its "
            "backward pass would draw others; call the layer outside of torch.compile, as by torch.compiler.disable"
        )
    return outputs


@scan_op.register_fake
def _(
    cell: int,
    kernel: str,
    amp: torch.dtype | None,
    x: Tensor,
    state: list[Tensor],
    own: list[Tensor],
    *rest: object,
) -> list[Tensor]:
    y = x.new_empty(x.shape[0], x.shape[1], by_handle[cell].output_size, dtype=amp or x.dtype)
    return [y, *(torch.empty_like(s, memory_format=torch.contiguous_format) for s in state)]


@scan_backward.register_fake
def _(
    grads: list[Tensor],
    cell: int,
    kernel: str,
    amp: torch.dtype | None,
    x: Tensor,
    state: list[Tensor],
    own: list[Tensor],
    *rest: object,
) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, *state, *own)]


def _setup(
    ctx: Any,  # noqa: ANN401  # takes any attribute
    inputs: tuple[Any, ...],
    output: list[Tensor],
) -> None:
    cell, kernel, amp, x, state, own, *more, keep = inputs
    ctx.names = cell, kernel, amp
    ctx.counts = len(state), len(own)
    ctx.present = [t is not None for t in more]
    ctx.save_for_backward(x, *state, *own, *(t for t in more if t is not None), *keep)


def _backward(
    ctx: Any,  # noqa: ANN401  # has what _setup set
    grads: list[Tensor],
) -> tuple[Any, ...]:
    x, *rest = read_saved(ctx)
    k, n = ctx.counts
    state, own, others = rest[:k], rest[k : k + n], iter(rest[k + n :])
    more = [next(others) if present else None for present in ctx.present]
    keep = list(others)
    dx, *gradients = scan_backward(grads, *ctx.names, x, state, own, *more, keep)
    down = [g if t.is_floating_point() else None for g, t in zip(gradients[k:], own, strict=True)]
    return None, None, None, dx, gradients[:k], down, None, None, None, None, [None] * len(keep)


scan_op.register_autograd(_backward, setup_context=_setup)
