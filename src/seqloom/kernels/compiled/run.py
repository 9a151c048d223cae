"""A compiled cell over a sequence, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.compiler.draws import draw_steps, read_random_state, replay_random
from seqloom.core.cell import State
from seqloom.core.job import ScanJob
from seqloom.kernels.autograd import Call, Gradients, run_prepared
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
        own_values = tuple(own.values())
        call = Call(x, state, own_values, (), job.dt, job.lengths, job.reset, job.mask, job.keep)
        inputs = (x, *state, *own_values, *(() if job.dt is None else (job.dt,)))
        call.train = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
        y, *last = run_prepared(CompiledScan(self, tuple(own), enter, slow and (lambda _: slow)), call)
        return y, tuple(last)


class CompiledSaved(NamedTuple):
    """What the backward pass needs.

    Attributes:
        rows: The step's input, packed.
        starts: The states after a reset, sorted.
        states: The states of all steps, (B + N, ...), packed.
        values: Values of the nodes in `Stages.saved`.
        draws: The random numbers of all steps, packed.
        packing: Where the rows of each step are.
        entered: The graph from the leaves to what enters the step; None if the plan's x is the input.
    """

    rows: Tensor
    starts: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    draws: tuple[Tensor, ...]
    packing: Packing
    entered: _Entered | None


@dataclass(frozen=True, eq=False)
class CompiledScan:
    """A compiled cell that is ready for calls.

    Attributes:
        compiled: The programs.
        names: The cell's names for the weights of a call.
        enter: As in `Compiled.run_cell`.
        slow: Returns the argument `slow` of `Compiled.run_cell` for a call; None if there is none.
    """

    compiled: Compiled
    names: tuple[str, ...]
    enter: Enter | None
    slow: Callable[[Call], Flat] | None

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], CompiledSaved | None]:
        """Return the outputs (B, T, H) and the last states, and what the backward pass needs."""
        compiled, x, entered = self.compiled, call.x, None
        packing = Packing.of(x.shape[0], x.shape[1], call.lengths, x.device, x.stride(1) > x.stride(0))
        own = dict(zip(self.names, call.weights, strict=True))
        if compiled.plan.draws and call.train:
            call.random = read_random_state(x.device)
        if call.train and self.enter is not None:
            rows, start, entered = self._enter_with_graph(call, packing, own)
        else:
            rows, start = self._enter_packed(call, packing, own)
        draws = draw_steps(compiled.plan.draws, packing.count.tolist(), rows) if compiled.plan.draws else ()
        named, stage = self._name_inputs(call, packing, rows, start, own, draws), compiled.infer
        if not call.train:
            y, last, _, _ = compiled.run_forward(named, call.states, packing, stage)
            return (y, *last), None
        y, last, states, known = compiled.run_forward(named, call.states, packing, compiled.train)
        values = tuple(known[n] for n in compiled.saved)
        seen = (x, *call.states, *call.weights, rows, *start, *states, *values)
        return (_release(y, seen), *last), CompiledSaved(
            rows, tuple(start), tuple(states), values, draws, packing, entered
        )

    def backward(self, call: Call, saved: CompiledSaved, grads: Sequence[Tensor | None], needs: Gradients) -> Gradients:
        """Return the gradients of the input, the states, the weights and the time spans."""
        with torch.no_grad():
            return _run_backward(self, call, saved, grads, needs)

    def differentiate(self, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
        """Return the gradients by the reference loop, with a graph."""
        assert self.slow is not None, "compiled programs alone have no second derivative"
        tensors = [call.x, *call.states, *call.weights, *(() if call.dt is None else (call.dt,))]
        k, m = 1 + len(call.states), 1 + len(call.states) + len(call.weights)
        with replay_random(call.random, call.x.device):
            outputs = self.slow(call)(*tensors)
        found = differentiate(tensors, outputs, grads, True, again=True)
        return Gradients(found[0], found[1:k], found[k:m], dt=found[m] if len(found) > m else None)

    def packs_first(self, call: Call) -> bool:
        """Return whether rows are packed before they enter the cell: `project` then sees no padding."""
        return self.compiled.plan.alone and call.reset is None

    def _enter_packed(self, call: Call, packing: Packing, own: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """Return the step's input (N, ...) and the states after a reset, sorted."""
        if self.enter is None:
            return packing.pack(call.x), ()
        if self.packs_first(call):
            rows, start = self.enter(packing.pack_steps(call.x), own)
            return rows.reshape(packing.N, *rows.shape[2:]), start
        whole, start = self.enter(call.x, own)
        return packing.pack(whole), tuple(packing.sort(s) for s in start)

    def _enter_with_graph(
        self, call: Call, packing: Packing, own: Mapping[str, Tensor]
    ) -> tuple[Tensor, State, _Entered]:
        """Return what `_enter_packed` returns, and the graph of what the cell computes itself."""
        assert self.enter is not None
        x, is_first = call.x, self.packs_first(call)
        leaf = (packing.pack_steps(x) if is_first else x).detach().requires_grad_(x.requires_grad)
        leaves = {name: t.detach().requires_grad_(t.requires_grad) for name, t in own.items()}
        with torch.enable_grad():
            entered, start = self.enter(leaf, leaves)
        rows = entered.detach()
        rows = rows.reshape(packing.N, *rows.shape[2:]) if is_first else packing.pack(rows)
        return rows, tuple(packing.sort(s.detach()) for s in start), _Entered(leaf, leaves, entered, start)

    def _name_inputs(
        self,
        call: Call,
        packing: Packing,
        rows: Tensor,
        start: State,
        own: Mapping[str, Tensor],
        draws: Sequence[Tensor],
    ) -> dict[str, Tensor]:
        """Return the step's inputs and the weights by name, packed."""
        dtype = call.x.dtype
        named = {f"weight {name}": own[name] for name in self.compiled.plan.weights}
        named["x"] = rows
        named |= {f"draw_{i}": numbers for i, numbers in enumerate(draws)}
        named |= {f"start_{i}": s.contiguous() for i, s in enumerate(start)}
        named |= {f"keep_{i}": packing.pack(k.to(dtype)) for i, k in enumerate(call.keep)}
        if call.reset is not None:
            named["reset"] = packing.pack(call.reset)
        if call.mask is not None:
            named["mask"] = packing.sort(call.mask.to(dtype)).contiguous()
        if call.dt is not None:
            named["dt"] = packing.pack(call.dt.to(dtype))
        return named


class _Entered(NamedTuple):
    """The graph from the leaves to what enters the step, for the backward."""

    x: Tensor
    own: dict[str, Tensor]
    rows: Tensor
    start: State


def _release(y: Tensor, saved: Sequence[Tensor]) -> Tensor:
    """Return the outputs as a tensor that a caller may change in place; `saved` is read by the backward pass."""
    place = y.untyped_storage().data_ptr()
    if any(place == t.untyped_storage().data_ptr() for t in saved):
        return y.clone()
    if not y._is_view():
        return y
    # a function with several outputs must not return a view
    return y.new_empty(0).set_(y.untyped_storage(), y.storage_offset(), y.shape, y.stride())


def _run_backward(
    scan: CompiledScan, call: Call, saved: CompiledSaved, grads: Sequence[Tensor | None], needs: Gradients
) -> Gradients:
    """Run the reverse program, and what torch computes after it; returns what `CompiledScan.backward` returns."""
    compiled, packing, entered, plan = scan.compiled, saved.packing, saved.entered, scan.compiled.plan
    B, states = packing.B, saved.states
    own = dict(zip(scan.names, call.weights, strict=True))
    known = dict(zip(compiled.saved, saved.values, strict=True))
    needed = dict(zip(scan.names, needs.weights, strict=True))
    wanted = [f"dweight {name}" for name in plan.weights if needed[name]]
    if needs.x or (entered is not None and entered.rows.requires_grad):
        wanted.append("dx")
    if needs.dt:
        wanted.append("ddt")
    if entered is not None:
        wanted += [f"dstart_{i}" for i, s in enumerate(entered.start) if s.requires_grad]
    wanted = [name for name in wanted if name in plan.results]
    stage = compiled.prepare_reverse(wanted)
    named = scan._name_inputs(call, packing, saved.rows, saved.starts, own, saved.draws)
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
    dx, dstart = found.get("dx"), [found.get(f"dstart_{i}") for i in range(len(saved.starts))]
    own_grads: dict[str, Tensor | None] = {name: found.get(f"dweight {name}") for name in scan.names}
    if entered is not None:
        dx = _leave(scan.packs_first(call), packing, entered, dx, dstart, own_grads)
    elif dx is not None:
        dx = packing.unpack(dx)
    # states that start from zeros are not passed
    dstates = [packing.unsort(g[:B]) if need else None for g, need in zip(gradients, needs.states, strict=False)]
    spans, dt = call.dt, found.get("ddt")
    return Gradients(
        dx if needs.x else None,
        dstates,
        [own_grads[name] if needed[name] else None for name in scan.names],
        dt=None if dt is None or spans is None else packing.unpack(dt).to(spans.dtype),
    )


def _leave(
    is_packed_first: bool,
    packing: Packing,
    entered: _Entered,
    dx: Tensor | None,
    dstart: Sequence[Tensor | None],
    own_grads: dict[str, Tensor | None],
) -> Tensor | None:
    """Return the gradient of x from that of the step's input, and accumulate those of the cell's tensors."""
    rows = entered.rows
    ends, pulls = [], []
    if dx is not None and rows.requires_grad:
        ends.append(rows)
        pulls.append((dx.reshape(rows.shape) if is_packed_first else packing.unpack(dx)).to(rows.dtype))
    for s, d in zip(entered.start, dstart, strict=True):
        if d is not None and s.requires_grad:
            ends.append(s)
            pulls.append(packing.unsort(packing.add_up(d)).to(s.dtype))
    names = [name for name, t in entered.own.items() if t.requires_grad]
    leaves = [entered.own[name] for name in names] + [entered.x] * entered.x.requires_grad
    if not ends or not leaves:
        return None
    keep = torch._C._autograd._get_current_graph_task_keep_graph()
    gradients = run_backward(ends, leaves, pulls, keep)
    for name, g in zip(names, gradients, strict=False):
        mine = own_grads[name]
        own_grads[name] = g if mine is None else mine if g is None else mine + g
    inner = gradients[-1] if entered.x.requires_grad else None
    return packing.unpack_steps(inner) if inner is not None and is_packed_first else inner
