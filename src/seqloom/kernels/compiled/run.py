"""A compiled cell over a sequence, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.kernels.compiled.packing import Packing
from seqloom.kernels.compiled.stages import Stages
from seqloom.kernels.fused import Flat, differentiate, run_backward

# From the cell's input (B, T, D) and its tensors to a plan's x (B, T, ...) and the states after a reset (B, ...). Rows
# that are packed come as (T, B, D) or (rows, 1, D).
Enter = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, State]]


class Compiled(Stages):
    """A plan that is ready to run: see `Stages`."""

    def run(
        self,
        job: ScanJob,
        x: Tensor,
        state: State,
        start: State,
        own: Mapping[str, Tensor],
    ) -> tuple[Tensor, State]:
        """Run the cell over what its `project` returned, with first derivatives.

        Args:
            job: Lengths, resets, time spans and masks.
            x: (B, T, ...), what `project` returned.
            state: The states before the first step.
            start: The states after a reset; empty if the job has none.
            own: The tensors that a step reads, by name.

        Returns:
            The outputs (B, T, H) and the last state.
        """
        starts = {f"start {i}": s for i, s in enumerate(start)}

        def enter(x: Tensor, values: Mapping[str, Tensor]) -> tuple[Tensor, State]:
            return x, tuple(values[name] for name in starts)

        return self.run_cell(job, x, state, {**own, **starts}, enter if start else None)

    def run_cell(
        self,
        job: ScanJob,
        x: Tensor,
        state: State,
        own: Mapping[str, Tensor],
        enter: Enter | None = None,
        slow: Flat | None = None,
    ) -> tuple[Tensor, State]:
        """Run the cell.

        Args:
            job: Lengths, resets, time spans and masks.
            x: (B, T, D), the input.
            state: The states before the first step.
            own: The tensors that the cell reads, by name.
            enter: Returns the plan's x and, if the job has resets, the states after one; None if the plan's x is the
                input and there are no resets.
            slow: Maps x, states, the tensors of `own` and, if they require gradients, the time spans to outputs and
                states, for second derivatives; None if there are none.

        Returns:
            The outputs (B, T, H) and the last state.
        """
        packing = Packing.of(x.shape[0], x.shape[1], job.lengths, x.device)
        call = _Call(self, job, packing, tuple(own), enter, slow)
        spans = () if job.dt is None or not job.dt.requires_grad else (job.dt,)
        inputs = (x, *state, *own.values(), *spans)
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            y, *last = _Scan.apply(call, *inputs)
        else:
            rows, start = call.enter_packed(x, own)
            y, last, _, _ = self.run_forward(call.name_inputs(rows, start, own), state, packing, self.infer)
        return y, tuple(last)


@dataclass(frozen=True, eq=False)
class _Call:
    """What a scan and its backward share; the fields are arguments of `Compiled.run_cell`."""

    compiled: Compiled
    job: ScanJob
    packing: Packing
    names: tuple[str, ...]
    enter: Enter | None
    slow: Flat | None

    @property
    def is_packed_first(self) -> bool:
        """Whether rows are packed before they enter the cell: `project` then sees no padding."""
        return self.compiled.plan.alone and self.job.reset is None

    def enter_packed(self, x: Tensor, own: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """Return the step's input (N, ...) and the states after a reset, sorted."""
        packing = self.packing
        if self.enter is None:
            return packing.pack(x), ()
        if self.is_packed_first:
            rows, start = self.enter(packing.pack_steps(x), own)
            return rows.reshape(packing.N, *rows.shape[2:]), start
        whole, start = self.enter(x, own)
        return packing.pack(whole), tuple(packing.sort(s) for s in start)

    def name_inputs(self, rows: Tensor, start: State, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the step's inputs and the weights by name, packed."""
        job, packing, dtype = self.job, self.packing, self.job.x.dtype
        named = {f"weight {name}": own[name] for name in self.compiled.plan.weights}
        named["x"] = rows
        if job.is_plain:
            return named
        named |= {f"start_{i}": s.contiguous() for i, s in enumerate(start)}
        named |= {f"keep_{i}": packing.pack(k.to(dtype)) for i, k in enumerate(job.keep)}
        if job.reset is not None:
            named["reset"] = packing.pack(job.reset)
        if job.mask is not None:
            named["mask"] = packing.sort(job.mask.to(dtype)).contiguous()
        if job.dt is not None:
            named["dt"] = packing.pack(job.dt.to(dtype))
        return named


class _Entered(NamedTuple):
    """The graph from the leaves to what enters the step, for the backward."""

    x: Tensor
    own: dict[str, Tensor]
    rows: Tensor
    start: State


def _enter_with_graph(call: _Call, x: Tensor, own: Mapping[str, Tensor]) -> tuple[Tensor, State, _Entered]:
    """Return what `_Call.enter_packed` returns, and the graph of what the cell computes itself."""
    assert call.enter is not None
    packing, is_first = call.packing, call.is_packed_first
    leaf = (packing.pack_steps(x) if is_first else x).detach().requires_grad_(x.requires_grad)
    leaves = {name: t.detach().requires_grad_(t.requires_grad) for name, t in own.items()}
    with torch.enable_grad():
        entered, start = call.enter(leaf, leaves)
    rows = entered.detach()
    rows = rows.reshape(packing.N, *rows.shape[2:]) if is_first else packing.pack(rows)
    return rows, tuple(packing.sort(s.detach()) for s in start), _Entered(leaf, leaves, entered, start)


def _release(y: Tensor, states: Sequence[Tensor], saved: Sequence[Tensor]) -> Tensor:
    """Return the outputs as a tensor that a caller may change in place."""
    place = y.untyped_storage().data_ptr()
    if any(place == t.untyped_storage().data_ptr() for t in (*states, *saved)):
        return y.clone()
    if not y._is_view():
        return y
    # a function with several outputs must not return a view
    return y.new_empty(0).set_(y.untyped_storage(), y.storage_offset(), y.shape, y.stride())


class _Scan(torch.autograd.Function):
    """x, the states, the cell's tensors and time spans with gradients -> outputs (B, T, H), last states."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        call: _Call,
        x: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        compiled, k = call.compiled, call.compiled.plan.states
        state, own = rest[:k], dict(zip(call.names, rest[k:], strict=False))
        ctx.entered = None
        if call.enter is None:
            rows, start = call.enter_packed(x, own)
        else:
            rows, start, ctx.entered = _enter_with_graph(call, x, own)
        named = call.name_inputs(rows, start, own)
        y, last, states, known = compiled.run_forward(named, state, call.packing, compiled.train)
        ctx.call, ctx.inputs = call, 1 + len(rest)
        ctx.starts = len(start)
        ctx.set_materialize_grads(False)
        saved = (x, *rest, rows, *start, *states, *(known[n] for n in compiled.saved))
        ctx.save_for_backward(*saved)
        return _release(y, states, saved), *last

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        *grads: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        values, n = read_saved(ctx), ctx.inputs
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        if torch.is_grad_enabled():
            assert call.slow is not None, "compiled programs alone have no second derivative"
            return None, *differentiate(values[:n], call.slow(*values[:n]), grads, keep, again=True)
        entered: _Entered | None = ctx.entered
        if not keep:
            ctx.entered = None  # else a reference to the loss keeps all of it
        with torch.no_grad():
            return None, *_run_backward(ctx, call, values, grads, entered, keep)


def _run_backward(
    ctx: Any,  # noqa: ANN401  # has what forward set
    call: _Call,
    values: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    entered: _Entered | None,
    keep: bool,
) -> list[Tensor | None]:
    """Return the gradients of the inputs of `_Scan`."""
    compiled, packing, plan = call.compiled, call.packing, call.compiled.plan
    n, k, B = ctx.inputs, plan.states, packing.B
    own = dict(zip(call.names, values[1 + k : n], strict=False))
    rows, start = values[n], values[n + 1 : n + 1 + ctx.starts]
    rest = values[n + 1 + ctx.starts :]
    states, known = rest[:k], dict(zip(compiled.saved, rest[k:], strict=True))
    needs_x, needs = ctx.needs_input_grad[1], dict(zip(call.names, ctx.needs_input_grad[2 + k :], strict=False))
    spans = values[1 + k + len(call.names) : n]
    wanted = [f"dweight {name}" for name in plan.weights if needs[name]]
    if needs_x or (entered is not None and entered.rows.requires_grad):
        wanted.append("dx")
    if spans:
        wanted.append("ddt")
    if entered is not None:
        wanted += [f"dstart_{i}" for i, s in enumerate(entered.start) if s.requires_grad]
    wanted = [name for name in wanted if name in plan.results]
    stage = compiled.prepare_reverse(wanted)
    named = call.name_inputs(rows, tuple(start), own)
    dy, *dlast = grads
    if dy is None:
        sizes = plan.values[plan.inputs["dy"]].sizes
        named["dy"] = states[0].new_zeros(packing.N, *sizes[1:])
    else:
        named["dy"] = packing.pack(dy).contiguous()
    gradients = []
    for i, (d, s) in enumerate(zip(dlast, states, strict=True)):
        steps = compiled.allocate(s, *s.shape)
        packing.put_last(steps, d)
        gradients.append(steps)
        named[f"dafter_{i}"] = steps[B:]
    for node, i in stage.after:
        known[node] = states[i][B:]
    compiled.execute(stage, named, known, packing, {"state": states, "gradient": gradients})
    compiled.evaluate(stage.then, known, packing.N, states[0])
    found = {name: known[plan.results[name]].to(states[0].dtype) for name in wanted}
    dx, dstart = found.get("dx"), [found.get(f"dstart_{i}") for i in range(ctx.starts)]
    own_grads: dict[str, Tensor | None] = {name: found.get(f"dweight {name}") for name in call.names}
    if entered is not None:
        dx = _leave(call, entered, dx, dstart, own_grads, keep)
    elif dx is not None:
        dx = packing.unpack(dx)
    needs_state = ctx.needs_input_grad[2 : 2 + k]
    dstates = [packing.unsort(g[:B]) if needed else None for g, needed in zip(gradients, needs_state, strict=True)]
    dspans = [packing.unpack(found["ddt"]).to(t.dtype) if "ddt" in found else None for t in spans]
    dx = dx if needs_x else None
    return [dx, *dstates, *(own_grads[name] if needs[name] else None for name in call.names), *dspans]


def _leave(
    call: _Call,
    entered: _Entered,
    dx: Tensor | None,
    dstart: Sequence[Tensor | None],
    own_grads: dict[str, Tensor | None],
    keep: bool,
) -> Tensor | None:
    """Return the gradient of x from that of the step's input, and add to those of the cell's tensors."""
    packing, rows = call.packing, entered.rows
    ends, pulls = [], []
    if dx is not None and rows.requires_grad:
        ends.append(rows)
        pulls.append((dx.reshape(rows.shape) if call.is_packed_first else packing.unpack(dx)).to(rows.dtype))
    for s, d in zip(entered.start, dstart, strict=True):
        if d is not None and s.requires_grad:
            ends.append(s)
            pulls.append(packing.unsort(packing.add_up(d)).to(s.dtype))
    names = [name for name, t in entered.own.items() if t.requires_grad]
    leaves = [entered.own[name] for name in names] + [entered.x] * entered.x.requires_grad
    if not ends or not leaves:
        return None
    gradients = run_backward(ends, leaves, pulls, keep)
    for name, g in zip(names, gradients, strict=False):
        mine = own_grads[name]
        own_grads[name] = g if mine is None else mine if g is None else mine + g
    inner = gradients[-1] if entered.x.requires_grad else None
    return packing.unpack_steps(inner) if inner is not None and call.is_packed_first else inner
