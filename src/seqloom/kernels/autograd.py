"""One node of the graph for every prepared kernel.

A prepared kernel has a forward pass, a backward pass, and a differentiable version of its gradients computed by the
reference loop; this file combines them into a `torch.autograd.Function`. The forward pass returns a named tuple of what
it saves, which the backward pass receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob

Maybe = Tensor | None


@dataclass(slots=True)
class Call:
    """The tensors of one call. Those before `lengths` may have gradients.

    Attributes:
        x: The input.
        states: The states before the first step; empty for the initial states.
        weights: All weights of the kernel; None for those that a cell lacks.
        starts: The states after a reset; empty if they are zeros or if there are no resets.
        dt: (B, T), the time since the previous step; None for cells without time.
        lengths: (B,) int64, the real steps of each row, in memory that nothing else changes; None if all are real.
        reset: (B, T) bool, where the state is reset; None if nowhere.
        mask: (B, H), recurrent dropout; None without.
        keep: Zoneout: for each state the share of the old value that is kept, (B, T, ...).
        train: Whether a backward pass may follow, so that the forward pass must save what that needs.
        random: The state of the random generator before the call, for second derivatives; None if nothing is drawn.
    """

    x: Any  # Tensor
    states: Sequence[Any]  # Tensors
    weights: Sequence[Any]  # Tensors and None
    starts: Sequence[Any] = ()
    dt: Maybe = None
    lengths: Maybe = None
    reset: Maybe = None
    mask: Maybe = None
    keep: Sequence[Tensor] = ()
    train: bool = False
    random: Maybe = None

    @property
    def tensors(self) -> list[Any]:  # Tensors and None
        """All tensors that may have gradients."""
        return [self.x, *self.states, *self.starts, *self.weights, *(() if self.dt is None else (self.dt,))]

    def name(self, flat: Sequence[Any]) -> Gradients:
        """Name one value for each of `tensors`."""
        return _name(flat, (len(self.states), len(self.starts), len(self.weights)))

    def needs_gradient(self) -> bool:
        """Return whether autograd is on and one of the tensors requires a gradient."""
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in self.tensors)


def make_call(
    job: ScanJob, x: Tensor, states: Sequence[Tensor], weights: Sequence[Maybe], starts: Sequence[Tensor] = ()
) -> Call:
    """Return the call of a job: everything contiguous, and masks in the type of the input.

    Args:
        job: Has the lengths, the resets and the dropout inside the recurrence.
        x: The input, projected or not.
        states: The states before the first step.
        weights: All weights of the kernel.
        starts: The states after a reset; empty without resets.
    """
    lengths = None if job.lengths is None else job.lengths.to(torch.int64).contiguous()
    reset = None if job.reset is None else job.reset.contiguous()
    mask = None if job.mask is None else job.mask.to(x.dtype).contiguous()
    keep = [share.to(x.dtype).contiguous() for share in job.keep]
    call = Call(x, states, weights, starts, None, lengths, reset, mask, keep)
    call.train = call.needs_gradient()
    return call


class Gradients(NamedTuple):
    """One value for each tensor of a `Call` that may have a gradient: the gradient, or whether it is needed."""

    x: Any
    states: Sequence[Any] = ()
    weights: Sequence[Any] = ()
    starts: Sequence[Any] = ()
    dt: Any = None


class Prepared(Protocol):
    """A kernel that is ready for calls of one form."""

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], Any]:
        """Return the outputs, and what the backward pass needs besides the call: a named tuple.

        Its fields are tensors, tuples of tensors, None, or other objects, which live as long as the graph. It is not
        used without `call.train`.
        """

    def backward(self, call: Call, saved: Any, grads: Sequence[Maybe], needs: Gradients) -> Gradients:  # noqa: ANN401
        """Return the gradients from those of the outputs; None stands for zeros, on both sides."""

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        """Return what `backward` returns, computed by the reference loop with a graph."""


def run_prepared(prepared: Prepared, call: Call) -> tuple[Tensor, ...]:
    """Run a prepared kernel, as one node of the graph if `call.train` is set."""
    if not call.train:
        return prepared.forward(call)[0]
    apply = _Run.apply if _has_transforms() else _apply
    result: tuple[Tensor, ...] = apply(prepared, call, *call.tensors)
    return result


class _Run(torch.autograd.Function):
    """The tensors of a call -> the outputs of a prepared kernel."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        prepared: Prepared,
        call: Call,
        *tensors: Maybe,
    ) -> tuple[Tensor, ...]:
        outputs, saved = prepared.forward(call)
        flat: list[Maybe] = []
        sizes: list[int] = []  # of each field: the number of its tensors, or what else it is
        others: list[Any] = []
        for field in saved:
            if type(field) is tuple:
                flat += field
                sizes.append(len(field))
            elif field is None or isinstance(field, Tensor):
                flat.append(field)
                sizes.append(_TENSOR)
            else:
                others.append(field)
                sizes.append(_OTHER)
        ctx.prepared, ctx.kind, ctx.sizes, ctx.others = prepared, type(saved), sizes, others
        ctx.counts = len(call.states), len(call.starts), len(call.weights)
        ctx.constants = call.lengths, call.reset, call.mask, call.keep, True, call.random
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *flat)
        return outputs

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        *grads: Maybe,
    ) -> tuple[Maybe, ...]:
        tensors = read_saved(ctx)
        needs, count = ctx.needs_input_grad[2:], len(ctx.needs_input_grad) - 2
        inputs = _name(tensors[:count], ctx.counts)
        call = Call(inputs.x, inputs.states, inputs.weights, inputs.starts, inputs.dt, *ctx.constants)
        if torch.is_grad_enabled():  # a second derivative is wanted
            found = ctx.prepared.differentiate(call, grads)
        else:
            saved = _join(ctx, tensors[count:])
            found = ctx.prepared.backward(call, saved, grads, _name(needs, ctx.counts))
        gradients = [found.x]
        for many, n in zip((found.states, found.starts, found.weights), ctx.counts, strict=True):
            gradients += many or [None] * n
        return None, None, *gradients, *(() if call.dt is None else (found.dt,))


# What `_Run.apply` calls outside of transforms such as vmap, without looking for tensors that they left behind: those
# have no memory, which prepared kernels require.
_apply = super(torch.autograd.Function, _Run).apply
_has_transforms, _keeps_graph = (
    torch._C._are_functorch_transforms_active,
    torch._C._autograd._get_current_graph_task_keep_graph,
)
_TENSOR, _OTHER = -1, -2  # a field that is one tensor or None; one that is something else


def _name(flat: Sequence[Any], counts: tuple[int, int, int]) -> Gradients:
    """Name the values of all tensors of a call that may have gradients."""
    states, starts, weights = counts
    a, b, c = 1 + states, 1 + states + starts, 1 + states + starts + weights
    return Gradients(flat[0], flat[1:a], flat[b:c], flat[a:b], flat[c] if len(flat) > c else None)


def _join(ctx: Any, flat: Sequence[Maybe]) -> Any:  # noqa: ANN401  # the node of a call; a named tuple of the kernel
    """Return what the forward pass saved."""
    others, at = iter(ctx.others), 0
    fields: list[Any] = []
    if ctx.others and not _keeps_graph():
        ctx.others = ()  # a reference to the loss would keep objects that are not tensors alive
    for size in ctx.sizes:
        if size >= 0:
            fields.append(flat[at : at + size])
            at += size
        elif size == _TENSOR:
            fields.append(flat[at])
            at += 1
        else:
            fields.append(next(others))
    return ctx.kind(*fields)
