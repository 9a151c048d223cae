"""A cell of the CPU engine over time, with its gradients: the same few lines for every cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights
from seqloom.kernels import tuning
from seqloom.kernels.cpu.engine import Args, ThreadSplit, record_size, run_cell, set_addresses, split_threads

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
    """`own` are the weights in the engine's order; x is what the input gives to each gate."""
    start = bind_weights(cell, w).start(job.x) if job.reset is not None else (None,) * len(state)
    asked = _Asked(
        name,
        {"slots": 1} | kind,
        None if job.lengths is None else job.lengths.to(torch.int64).contiguous(),
        None if job.reset is None else job.reset.contiguous(),
        None if job.mask is None else job.mask.to(x.dtype).contiguous(),
        tuple(k.to(x.dtype).contiguous() for k in job.keep),
    )
    flat = (None if t is None else t.contiguous() for t in (x, *state, *start, *own))
    y, *after = _Scan.apply(asked, len(state), *flat)
    return y, tuple(after)


@dataclass(frozen=True, eq=False)
class _Asked:
    """What has no gradient."""

    cell: str
    kind: dict[str, int]
    lengths: Maybe
    reset: Maybe
    mask: Maybe
    keep: tuple[Tensor, ...]

    def room(self, like: Tensor, *shape: int) -> Tensor:
        """For results; what lies past a length is not written, so it starts as 0."""
        return like.new_empty(shape) if self.lengths is None else like.new_zeros(shape)

    def args(self, k: int, given: Sequence[Maybe], crew: ThreadSplit) -> Args:
        x, h = given[0], given[1]
        assert x is not None and h is not None
        args = Args(x.shape[0], x.shape[1], h.shape[-1], crew.columns, **self.kind)
        set_addresses(args, lengths=self.lengths, reset=self.reset, mask=self.mask, keep=self.keep)
        return set_addresses(args, x=x, s0=given[1 : 1 + k], start=given[1 + k : 1 + 2 * k], w=given[1 + 2 * k :])


class _Scan(torch.autograd.Function):
    """x, k states, k starts, weights -> outputs, k last states."""

    @staticmethod
    def forward(ctx: Any, asked: _Asked, k: int, *given: Any) -> tuple[Tensor, ...]:
        x, h = given[0], given[1]
        (B, T), H = x.shape[:2], h.shape[-1]
        crew, train = split_threads(B, H, asked.kind["slots"]), any(ctx.needs_input_grad)
        args = asked.args(k, given, crew)
        y, last = asked.room(x, B, T, H), [torch.empty_like(s) for s in given[1 : 1 + k]]
        c = asked.room(x, B, T, H) if train and k > 1 else None
        size = record_size(asked.cell, x.dtype, args) * B * T
        saved = x.new_empty(size) if train and size * x.element_size() <= tuning.SAVED_BYTES else None
        run_cell(asked.cell, False, x.dtype, crew.threads, set_addresses(args, y=y, c=c, s1=last, saved=saved))
        if train:
            ctx.asked, ctx.k, ctx.crew = asked, k, crew
            ctx.save_for_backward(y, c, saved, *given)
        return y, *last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *dlast: Tensor) -> tuple[Maybe, ...]:
        asked, k = ctx.asked, ctx.k
        y, c, saved, *given = read_saved(ctx)
        args, x = asked.args(k, given, ctx.crew), given[0]
        dy, dlast = dy.contiguous(), tuple(d.contiguous() for d in dlast)
        dx = asked.room(x, *x.shape)
        found = [None if t is None else torch.empty_like(t) for t in given[1:]]
        set_addresses(args, y=y, c=c, saved=saved, dy=dy, ds1=dlast)
        set_addresses(args, dx=dx, ds0=found[:k], dstart=found[k : 2 * k], dw=found[2 * k :])
        run_cell(asked.cell, True, x.dtype, ctx.crew.threads, args)
        return None, None, dx, *found
