"""A scan by the CPU engine with its gradients, for every cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty_like, new_empty
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.cpu.engine import Args, ThreadSplit, record_size, run_cell, set_addresses, split_threads
from seqloom.kernels.cpu.kept_memory import kept_memory

Maybe = Tensor | None


def run_cpu(
    name: str,
    cell: Cell,
    job: ScanJob,
    w: dict[str, Tensor],
    x: Tensor,
    state: State,
    own: Sequence[Maybe],
    **kind: int,
) -> tuple[Tensor, State]:
    """Run a cell of the engine over a job.

    Args:
        name: The cell's name.
        cell: The cell.
        job: Lengths, resets and masks.
        w: The cell's weights by name.
        x: (B, T, gates * H), the projected input.
        state: The state before the first step.
        own: The recurrent weights in the engine's order.
        kind: Settings of the cell: fields of `Args`.

    Returns:
        The outputs (B, T, H) and the last state.
    """
    start = bind_weights(cell, w).start(job.x) if job.reset is not None else (None,) * len(state)
    constants = _Constants(
        name,
        {"slots": 1} | kind,
        None if job.lengths is None else job.lengths.to(torch.int64).contiguous(),
        None if job.reset is None else job.reset.contiguous(),
        None if job.mask is None else job.mask.to(x.dtype).contiguous(),
        tuple(k.to(x.dtype).contiguous() for k in job.keep),
    )
    flat = (None if t is None else t.contiguous() for t in (x, *state, *start, *own))
    y, *after = _EngineScan.apply(constants, len(state), *flat)
    return y, tuple(after)


@dataclass(frozen=True, eq=False)
class _Constants:
    """The inputs of a scan that have no gradient."""

    cell: str
    kind: dict[str, int]
    lengths: Maybe
    reset: Maybe
    mask: Maybe
    keep: tuple[Tensor, ...]

    def allocate(self, like: Tensor, *shape: int, keep: bool = False) -> Tensor:
        """Allocate a result; with lengths as zeros, since the engine does not write padding.

        Args:
            like: Has the type.
            shape: The shape.
            keep: Whether the memory is kept for later calls; for what no caller sees.
        """
        if self.lengths is None:
            return kept_memory.allocate(like, *shape) if keep else new_empty(like, shape)
        return like.new_zeros(shape)

    def args(self, k: int, tensors: Sequence[Maybe], split: ThreadSplit) -> Args:
        """Return the engine's arguments for k states."""
        x, h = tensors[0], tensors[1]
        assert x is not None and h is not None
        args = Args(x.shape[0], x.shape[1], h.shape[-1], split.columns, **self.kind)
        set_addresses(args, lengths=self.lengths, reset=self.reset, mask=self.mask, keep=self.keep)
        return set_addresses(args, x=x, s0=tensors[1 : 1 + k], start=tensors[1 + k : 1 + 2 * k], w=tensors[1 + 2 * k :])


class _EngineScan(torch.autograd.Function):
    """x, k states, k starts, weights -> outputs, k last states."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        constants: _Constants,
        k: int,
        *tensors: Any,  # noqa: ANN401  # Tensor; None for a start or a weight that the cell lacks
    ) -> tuple[Tensor, ...]:
        x, h = tensors[0], tensors[1]
        (B, T), H = x.shape[:2], h.shape[-1]
        split, train = split_threads(B, H, constants.kind["slots"]), any(ctx.needs_input_grad)
        args = constants.args(k, tensors, split)
        y, last = constants.allocate(x, B, T, H), [empty_like(s) for s in tensors[1 : 1 + k]]
        c = constants.allocate(x, B, T, H, keep=True) if train and k > 1 else None
        size = record_size(constants.cell, x.dtype, args) * B * T
        is_saved = train and size * x.element_size() <= heuristics.SAVED_BYTES
        saved = kept_memory.allocate(x, size) if is_saved else None
        run_cell(constants.cell, False, x.dtype, split.threads, set_addresses(args, y=y, c=c, s1=last, saved=saved))
        if train:
            ctx.constants, ctx.k, ctx.split = constants, k, split
            ctx.save_for_backward(y, c, saved, *tensors)
        return y, *last

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        dy: Tensor,
        *dlast: Tensor,
    ) -> tuple[Maybe, ...]:
        constants, k = ctx.constants, ctx.k
        y, c, saved, *tensors = read_saved(ctx)
        args, x = constants.args(k, tensors, ctx.split), tensors[0]
        dy, dlast = dy.contiguous(), tuple(d.contiguous() for d in dlast)
        dx = constants.allocate(x, *x.shape)
        gradients = [None if t is None else empty_like(t) for t in tensors[1:]]
        for i, needs in enumerate(ctx.needs_input_grad[3 : 3 + k]):  # the engine skips gradients that are not needed
            gradients[i] = gradients[i] if needs else None
        set_addresses(args, y=y, c=c, saved=saved, dy=dy, ds1=dlast)
        set_addresses(args, dx=dx, ds0=gradients[:k], dstart=gradients[k : 2 * k], dw=gradients[2 * k :])
        run_cell(constants.cell, True, x.dtype, ctx.split.threads, args)
        return None, None, dx, *gradients
