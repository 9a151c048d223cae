"""Any cell through torch's scan operator, compiled once for every length.

The operator lives in a private module of torch, which only this file names. Its backward is not used: with two scans in
one compiled graph it gives wrong weight gradients (torch 2.13, inductor), and it sums a weight gradient at every step.
Instead the forward pass saves only the states; the backward pass is one reverse scan for the gradients of the states,
then one batched step over all B * T rows for those of the input and the weights.
"""

from __future__ import annotations

import importlib.util
import threading
import weakref
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqloom.core.cell import NO_HOME, Cell, State, by_handle
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob, advance
from seqloom.core.weights import bind_weights, weights

Parts = dict[str, Tensor]


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return why this job cannot run here; None if it can."""
    if importlib.util.find_spec("torch._higher_order_ops.scan") is None:
        return "this torch has no scan operator"
    if torch.compiler.is_exporting():
        return None
    if torch._C._are_functorch_transforms_active():
        return "the compiled scan supports neither vmap nor forward-mode derivatives"
    if job.x.shape[0] == 0:
        return "the batch is empty"
    return None


def why_not_auto(cell: Cell, job: ScanJob) -> str | None:
    """Return why auto should not choose this kernel: outside torch.compile and export, compiling costs too much."""
    if torch.compiler.is_exporting() or compiling.active:
        return None
    return "the first call compiles for tens of seconds; choose it with kernel='scan', or use torch.compile"


class _Flag(threading.local):
    active = False


compiling = _Flag()  # active while a graph of torch.compile runs its scan


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the last state."""
    x = cell.project(job.x).transpose(0, 1)  # (T, B, P)
    start = cell.start(job.x) if job.reset is not None else ()
    if torch.compiler.is_exporting():
        with torch.no_grad():  # an export needs no gradients, and the operator's backward would fix the batch size
            state, start = (tuple(t.detach() for t in part) for part in (job.state, start))
            y, states = _forward(cell, x.detach(), job.per_step(), state, start, job.mask)
    else:
        own = weights(cell)
        y, *states = _CompiledScan.apply(_compile(cell), job, list(own), x, *job.state, *start, *own.values())
    return y.transpose(0, 1), tuple(s[-1] for s in states)


def scan_steps(
    step: Callable[[Tensor, list[Tensor]], tuple[Tensor, Tensor]], state: Tensor, parts: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Run a step over time in a program of torch.export, for any length.

    Args:
        step: A function of the state and this step's parts that returns the new state and an output (B, ...).
        state: (B, ...).
        parts: (B, T, ...) each.

    Returns:
        The outputs (B, T, ...) and the last state.
    """
    from torch._higher_order_ops import scan

    def body(carry: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        after, y = step(carry[0], now)
        return [after.clone()], [y.clone()]  # outputs must not alias

    with torch.no_grad():  # an export needs no gradients
        (end,), (y,) = scan(body, [state.detach().clone()], [t.detach().transpose(0, 1).clone() for t in parts])
    return y.transpose(0, 1), end


def _forward(
    cell: Cell, x: Tensor, now: Parts, state: State, start: State, mask: Tensor | None
) -> tuple[Tensor, State]:
    """Return the outputs (T, B, H) and the states after every step (T, B, ...)."""
    from torch._higher_order_ops import scan

    names = list(now)

    def step(state: list[Tensor], parts: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        x, *rest = parts
        y, after = advance(cell, x, tuple(state), dict(zip(names, rest, strict=True)), start, mask)
        return [s.clone() for s in after], [y.clone(), *(s.clone() for s in after)]  # outputs must not alias

    _, (y, *states) = scan(step, [s.clone() for s in state], [x, *now.values()])
    return y, tuple(states)


def _reverse(
    cell: Cell, x: Tensor, now: Parts, before: State, start: State, mask: Tensor | None, dy: Tensor, dstates: State
) -> tuple[State, State]:
    """Return the gradients of the initial state and of the state after every step, over all paths."""
    from torch._higher_order_ops import scan

    names, k = list(now), len(before)

    def step(carry: list[Tensor], parts: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        x, dy, rest = parts[0], parts[1], parts[2:]
        own, before = rest[:k], tuple(rest[k : 2 * k])
        now = dict(zip(names, rest[2 * k :], strict=True))
        total = tuple(c + d for c, d in zip(carry, own, strict=True))
        pull = torch.func.vjp(lambda *s: advance(cell, x, s, now, start, mask), *before)[1]
        return [d.clone() for d in pull((dy, total))], [d.clone() for d in total]

    parts = [t.flip(0) for t in (x, dy, *dstates, *before, *now.values())]
    first, totals = scan(step, [torch.zeros_like(s[0]) for s in before], parts)
    return tuple(first), tuple(t.flip(0) for t in totals)


class _Compiled:
    """The two compiled scans of one cell, run on a view of the cell whose weights are set at each call."""

    def __init__(self, cell: Cell) -> None:
        view = self.view = bind_weights(cell, weights(cell))
        view.__dict__["_home"] = NO_HOME  # else the cache would keep the layer alive
        self.lock = threading.RLock()
        self.forward: Callable[..., Any] = torch.compile(lambda *a: _forward(view, *a), fullgraph=True)
        self.reverse: Callable[..., Any] = torch.compile(lambda *a: _reverse(view, *a), fullgraph=True)

    def set_weights(self, own: Parts) -> None:
        """Replace the view's weights."""
        for name, value in own.items():
            *path, leaf = name.split(".")
            reduce(getattr, path, self.view).__dict__[leaf] = value.detach()


def mark_dynamic(
    x: Tensor, now: Parts, states: State, start: State, mask: Tensor | None, *grads: Tensor | State
) -> tuple[object, ...]:
    """Mark length and batch size of the arguments as dynamic, so that one program serves all, and return them."""
    over_time = [x, *now.values(), *(g for part in grads for g in (part if isinstance(part, tuple) else (part,)))]
    over_time += states if grads else ()
    over_rows = [*start, *(() if mask is None else (mask,)), *(() if grads else states)]
    for tensors, dims in ((over_time, 2), (over_rows, 1)):
        for t in tensors:
            for dim in range(dims):
                torch._dynamo.maybe_mark_dynamic(t, dim)
    return x, now, states, start, mask, *grads


_cache: weakref.WeakKeyDictionary[Cell, _Compiled] = weakref.WeakKeyDictionary()


def _compile(cell: Cell) -> _Compiled:
    """Return the compiled scans of a cell, from the cache if they exist."""
    cell = by_handle.get(cell.handle, cell)  # the cell itself if this is a view
    if cell not in _cache:
        _cache[cell] = _Compiled(cell)
    return _cache[cell]


class _CompiledScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        code: _Compiled,
        job: ScanJob,
        names: list[str],
        x: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        k = len(job.state)
        j = len(rest) - len(names)  # states, then starts
        state, start, own = rest[:k], rest[k:j], dict(zip(names, rest[j:], strict=True))
        state, start = (tuple(t.detach() for t in part) for part in (state, start))
        with code.lock, torch.no_grad():
            code.set_weights(own)
            y, states = code.forward(*mark_dynamic(x.detach(), job.per_step(), state, start, job.mask))
        ctx.code, ctx.job, ctx.names = code, job, names
        ctx.save_for_backward(x, *rest, *states)
        return y, *states

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        dy: Tensor,
        *dstates: Tensor,
    ) -> tuple[Tensor | None, ...]:
        code, job, names = ctx.code, ctx.job, ctx.names
        x, *rest = (t.detach() for t in read_saved(ctx))
        k = len(job.state)
        j = len(rest) - k - len(names)
        state, start, states = rest[:k], tuple(rest[k:j]), rest[-k:]
        own = dict(zip(names, rest[j:-k], strict=True))
        before = tuple(torch.cat([s0.unsqueeze(0), s[:-1]]) for s0, s in zip(state, states, strict=True))
        now = job.per_step()
        with code.lock, torch.no_grad():
            code.set_weights(own)
            first, totals = code.reverse(*mark_dynamic(x, now, before, start, job.mask, dy, dstates))
        dx, dstart, down = _step_all(code.view, x, now, before, start, job.mask, own, (dy, *totals))
        return None, None, None, dx, *first, *dstart, *down


def _step_all(
    cell: Cell, x: Tensor, now: Parts, before: State, start: State, mask: Tensor | None, own: Parts, grads: State
) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
    """Return the gradients of the input, the starts and the weights, by one step over all T * B rows."""
    T = x.shape[0]
    flat = [t.flatten(0, 1) for t in (x, *before, *now.values())]
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in (flat[0], *start, *own.values())]
        x, starts, values = leaves[0], leaves[1 : 1 + len(start)], leaves[1 + len(start) :]
        many = tuple(s.unsqueeze(0).expand(T, *s.shape).flatten(0, 1) for s in starts)
        masks = None if mask is None else mask.unsqueeze(0).expand(T, *mask.shape).flatten(0, 1)
        k = len(before)
        view = bind_weights(cell, dict(zip(own, values, strict=True)))
        y, after = advance(view, x, tuple(flat[1 : 1 + k]), dict(zip(now, flat[1 + k :], strict=True)), many, masks)
        outputs = [(o, g.flatten(0, 1)) for o, g in zip((y, *after), grads, strict=True) if o.requires_grad]
        inputs = [t for t in leaves if t.requires_grad]
        ends, pulls = [o for o, _ in outputs], [g for _, g in outputs]
        computed = iter(torch.autograd.grad(ends, inputs, pulls, allow_unused=True))
    gradients = [next(computed) if t.requires_grad else None for t in leaves]
    dx = gradients[0]
    assert dx is not None
    return dx.unflatten(0, (T, -1)), gradients[1 : 1 + len(start)], gradients[1 + len(start) :]
