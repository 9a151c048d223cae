"""A compiled cell over a sequence: packed rows, the three programs, and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.compiler.ir import Buffer, Place
from seqloom.compiler.plan import Evaluator, Memory, Plan, Scan, Step, Value, evaluate
from seqloom.core.cell import State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.kernels.compiled.packing import Packing
from seqloom.kernels.cpu.machine import is_transposed
from seqloom.kernels.fused import Flat, differentiate

# Operators that copy nothing, or whose result is no tensor.
VIEWS = frozenset(
    [
        *("alias", "detach", "expand", "getitem", "permute", "select", "slice", "split", "split_with_sizes"),
        *("squeeze", "transpose", "unbind", "unsqueeze", "view"),
    ]
)
RunProgram = Callable[[Scan, Sequence[Any], Packing], None]  # tensors; None as `is_direct` says
# From the cell's input (B, T, D) and its tensors to a plan's x (B, T, ...) and the states after a reset (B, ...). Rows
# that are packed come as (T, B, D) or (rows, 1, D).
Enter = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, State]]


class Compiled:
    """A plan that is ready to run.

    Args:
        plan: The plan.
        run_program: Runs one of its programs on a device.
        is_direct: Whether `run_program` reads transposed weights, and takes None for values that live within one step.
    """

    def __init__(self, plan: Plan, run_program: RunProgram, is_direct: bool = False) -> None:
        self.plan, self.run_program, self.is_direct = plan, run_program, is_direct
        self.evaluator = Evaluator(plan)
        self.leaves = self._find_leaves()
        after = {n for nodes in plan.after for n in nodes}
        inputs = {n for n in self.leaves if n not in (plan.inputs["dy"], *self._dafter())}
        memory = zip(plan.train.program.buffers, plan.train.memory, strict=True)
        self.saved = [m.node for b, m in memory if m.kind == "stored" and b.place is Place.TIME]
        ends = (plan.results["y"],)
        self.infer = self._stage(plan.infer, inputs, after, ends)
        self.train = self._stage(plan.train, inputs, after, ends)
        self.known_in_reverse = {*self.leaves, *after, *self.saved}
        self.saved += self._find_reused()
        self.known_in_reverse |= set(self.saved)
        self.reverse: dict[tuple[int, ...], _Stage] = {}  # by the gradients that are wanted

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
            slow: Maps x, states and the tensors of `own` to outputs and states, for second derivatives; None if there
                are none.

        Returns:
            The outputs (B, T, H) and the last state.
        """
        packing = Packing.of(x.shape[0], x.shape[1], job.lengths, x.device)
        call = _Call(self, job, packing, tuple(own), enter, slow)
        inputs = (x, *state, *own.values())
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            y, *last = _Scan.apply(call, *inputs)
        else:
            rows, start = call.enter_packed(x, own)
            y, last, _, _ = self.run_forward(call.name_inputs(rows, start, own), state, packing, self.infer)
        return y, tuple(last)

    # --- stages ---

    def _find_leaves(self) -> dict[int, tuple[str, Any]]:
        """Return where the values of weights and inputs come from, by node."""
        plan = self.plan
        leaves: dict[int, tuple[str, Any]] = {n: ("named", f"weight {name}") for name, n in plan.weights.items()}
        for name, n in plan.inputs.items():
            first, _, index = name.partition("_")
            if first == "state":
                leaves[n] = "before", int(index)
            elif first in ("start", "mask"):
                leaves[n] = "spread", name
            else:
                leaves[n] = "named", name
        return leaves

    def _find_reused(self) -> list[int]:
        """Return what torch computes in the forward pass, other than views, and needs in the backward pass."""
        plan = self.plan
        computed = (*self.train.first, *self.train.then)
        costly = {s.node for s in computed if plan.calls[s.node].operator.partition(".")[0] not in VIEWS}
        ends = [n for name, n in plan.results.items() if name != "y"]
        stored = {m.node for m in plan.reverse.memory if m.kind == "stored"}
        steps = self.evaluator.order([*ends, *plan.reverse.nodes()], self.known_in_reverse | costly | stored)
        needed = {*plan.reverse.nodes(), *(n for step in steps for n in self.evaluator.needs[step.node])}
        return sorted(needed & costly)

    def _dafter(self) -> list[int]:
        return [self.plan.inputs[f"dafter_{i}"] for i in range(self.plan.states)]

    def _stage(self, scan: Scan, known: set[int], after: set[int], ends: Iterable[int]) -> _Stage:
        """Prepare a program.

        Args:
            scan: The program.
            known: The nodes that are known before it runs.
            after: The nodes that are known when it has run, beside those that it stores.
            ends: The nodes that torch computes then.
        """
        plan, ends = self.plan, tuple(ends)
        rows = {n: name for name, n in plan.inputs.items() if name == "mask" or name.startswith("start_")}
        sources = [
            self._source(b, m, m.node in known, rows) for b, m in zip(scan.program.buffers, scan.memory, strict=True)
        ]
        read = [s.node for s in sources if s.kind in ("weight", "shared", "rows")]
        first = self.evaluator.order(read, known)
        stored = {s.node for s in sources if s.kind == "new"}
        then = self.evaluator.order(ends, {*known, *after, *stored, *(step.node for step in first)})
        needs = self.evaluator.needs
        needed = {*read, *ends, *(n for step in (*first, *then) for n in needs[step.node])}
        return _Stage(
            scan,
            tuple(sources),
            tuple((n, *self.leaves[n]) for n in sorted(needed & self.leaves.keys() & known)),
            tuple(first),
            tuple(then),
            tuple((n, i) for i, nodes in enumerate(plan.after) for n in nodes if n in needed),
        )

    def _source(self, buffer: Buffer, memory: Memory, is_known: bool, rows: Mapping[int, str]) -> _Source:
        if memory.kind in ("state", "gradient"):
            return _Source(memory.kind, memory.index)
        value, size = self.plan.values.get(memory.node), buffer.size
        if memory.kind == "stored" and not is_known:
            return _Source("new" if buffer.place is Place.TIME else "scratch", memory.node, size, value)
        if buffer.place is Place.ROW:
            return _Source("row", memory.node, size, name=rows[memory.node])
        if memory.kind == "weight":
            return _Source("weight", memory.node, size, is_transposed=memory.transposed)
        return _Source("shared" if buffer.place is Place.WEIGHT else "rows", memory.node, size, value)

    # --- running ---

    def run_forward(
        self, named: Mapping[str, Tensor], state: State, packing: Packing, stage: _Stage
    ) -> tuple[Tensor, list[Tensor], list[Tensor], dict[int, Any]]:
        """Run a forward program.

        Args:
            named: The step's inputs by name, packed, and the weights.
            state: The states before the first step.
            packing: Where the rows of each step are.
            stage: The program.

        Returns:
            The outputs (B, T, H), the last states, the states (B + N, ...) of all steps, packed, and what is known.
        """
        B, states = packing.B, []
        for s in state:
            steps = s.new_empty(B + packing.N, *s.shape[1:])
            steps[:B].copy_(packing.sort(s))
            states.append(steps)
        known: dict[int, Any] = {}
        self.execute(stage, named, known, packing, {"state": states})
        for n, i in stage.after:
            known[n] = states[i][B:]
        evaluate(stage.then, known, packing.N, states[0].device)
        y = packing.unpack(known[self.plan.results["y"]])
        return y, [packing.unsort(packing.last_states(s).clone()) for s in states], states, known

    def execute(
        self,
        stage: _Stage,
        named: Mapping[str, Tensor],
        known: dict[int, Any],
        packing: Packing,
        memory: Mapping[str, Sequence[Tensor]],
    ) -> None:
        """Run a program; what it stores for all steps is known afterwards.

        Args:
            stage: The program.
            named: The step's inputs by name, packed, and the weights.
            known: The values of nodes.
            packing: Where the rows of each step are.
            memory: The states and their gradients, each (B + N, ...).
        """
        like, N = memory["state"][0], packing.N
        for n, kind, name in stage.leaves:
            if kind == "named":
                known[n] = named[name]
            else:
                known[n] = (
                    packing.states_before(memory["state"][name]) if kind == "before" else packing.spread(named[name])
                )
        evaluate(stage.first, known, N, like.device)
        dtype, tensors, stored = like.dtype, [], []
        for s in stage.sources:
            kind = s.kind
            t: Tensor | None
            if kind in memory:
                t = memory[kind][s.node]
            elif kind == "new":
                t = like.new_empty(N, s.size)
                stored.append((s, t))
            elif kind == "scratch":
                t = None if self.is_direct else like.new_empty(packing.B, s.size)
            else:
                t = self._read(s, named[s.name] if kind == "row" else known[s.node], packing)
                if t.dtype != dtype:
                    t = t.to(dtype)
            tensors.append(t)
        self.run_program(stage.scan, tensors, packing)
        for s, t in stored:
            known[s.node] = _as_node(s.value, t, N)

    def _read(self, s: _Source, t: Tensor, packing: Packing) -> Tensor:
        """Return the memory of a value as a program expects it."""
        rows = 1
        if s.kind == "rows":
            rows = packing.N
            if not (t.dim() == 2 and t.shape == (rows, s.size) and t.is_contiguous()):
                t = as_rows(s.value, t, rows)
        elif s.kind == "weight":
            t = t.transpose(-1, -2) if s.is_transposed else t
            t = t if self.is_direct and is_transposed(t) else t.contiguous()
        else:
            rows = packing.B if s.kind == "row" else 1
            t = t.contiguous()
        if t.numel() != rows * s.size:  # programs read by address
            raise AssertionError(f"a program needs {rows} x {s.size} numbers, got {tuple(t.shape)}")
        return t


class _Source(NamedTuple):
    """Where the memory of a program's buffer comes from.

    Attributes:
        kind: "state" and "gradient" (number `node`); "new", stored for all steps; "scratch", stored within a step;
            "row", one value per row for all steps; "weight", of a product; "shared", by all rows; "rows", one value
            per packed row.
        node: The node, or the number of a state.
        size: The numbers of a row; of all, for weights and what is shared.
        value: The shape of the node's value.
        name: The input, for "row".
        is_transposed: Whether a weight's node holds (N, K).
    """

    kind: str
    node: int
    size: int = 0
    value: Value | None = None
    name: str = ""
    is_transposed: bool = False


@dataclass(frozen=True, eq=False)
class _Stage:
    """A program, and what torch computes before and after it.

    Attributes:
        scan: The program.
        sources: Where the memory of its buffers comes from.
        leaves: The weights and inputs that are needed: node, kind and name, see `Compiled._find_leaves`.
        first: What torch computes before the program.
        then: What torch computes after it.
        after: The nodes that are states after the step and needed then: node, number of the state.
    """

    scan: Scan
    sources: tuple[_Source, ...]
    leaves: tuple[tuple[int, str, Any], ...]
    first: tuple[Step, ...]
    then: tuple[Step, ...]
    after: tuple[tuple[int, int], ...]


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


def as_rows(value: Value | None, t: Tensor, N: int) -> Tensor:
    """Return a node's value as (N, numbers of a row)."""
    assert value is not None
    d = value.batch
    assert d is not None
    if d == 0 and value.sizes[0] == 1:
        return t.reshape(N, math.prod(value.sizes)).contiguous()
    return t.unflatten(d, (N, value.sizes[d])).movedim(d, 0).reshape(N, math.prod(value.sizes)).contiguous()


def _as_node(value: Value | None, t: Tensor, N: int) -> Tensor:
    """Return (N, numbers of a row) in a node's own shape."""
    assert value is not None
    d = value.batch
    assert d is not None
    if d == 0 and value.sizes[0] == 1:
        return t if len(value.sizes) == 2 else t.view(N, *value.sizes[1:])
    return t.view(N, *value.sizes).movedim(0, d).flatten(d, d + 1)


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
    """x, the states and the cell's tensors -> outputs (B, T, H), last states."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        call: _Call,
        x: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        compiled, k = call.compiled, call.compiled.plan.states
        state, own = rest[:k], dict(zip(call.names, rest[k:], strict=True))
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
    x, own = values[0], dict(zip(call.names, values[1 + k : n], strict=True))
    rows, start = values[n], values[n + 1 : n + 1 + ctx.starts]
    rest = values[n + 1 + ctx.starts :]
    states, known = rest[:k], dict(zip(compiled.saved, rest[k:], strict=True))
    needs_x, needs = ctx.needs_input_grad[1], dict(zip(call.names, ctx.needs_input_grad[2 + k :], strict=True))
    wanted = [f"dweight {name}" for name in plan.weights if needs[name]]
    if needs_x or (entered is not None and entered.rows.requires_grad):
        wanted.append("dx")
    if entered is not None:
        wanted += [f"dstart_{i}" for i, s in enumerate(entered.start) if s.requires_grad]
    wanted = [name for name in wanted if name in plan.results]
    ends = tuple(plan.results[name] for name in wanted)
    stage = compiled.reverse.get(ends)
    if stage is None:
        stage = compiled.reverse[ends] = compiled._stage(plan.reverse, compiled.known_in_reverse, set(), ends)
    named = call.name_inputs(rows, tuple(start), own)
    dy, *dlast = grads
    if dy is None:
        sizes = plan.values[plan.inputs["dy"]].sizes
        named["dy"] = states[0].new_zeros(packing.N, *sizes[1:])
    else:
        named["dy"] = packing.pack(dy).contiguous()
    gradients = []
    for i, (d, s) in enumerate(zip(dlast, states, strict=True)):
        steps = s.new_empty(s.shape)
        packing.put_last(steps, d)
        gradients.append(steps)
        named[f"dafter_{i}"] = steps[B:]
    for node, i in stage.after:
        known[node] = states[i][B:]
    compiled.execute(stage, named, known, packing, {"state": states, "gradient": gradients})
    evaluate(stage.then, known, packing.N, x.device)
    found = {name: known[plan.results[name]] for name in wanted}
    dx, dstart = found.get("dx"), [found.get(f"dstart_{i}") for i in range(ctx.starts)]
    own_grads: dict[str, Tensor | None] = {name: found.get(f"dweight {name}") for name in call.names}
    if entered is not None:
        dx = _leave(call, entered, dx, dstart, own_grads, keep)
    elif dx is not None:
        dx = packing.unpack(dx)
    needs_state = ctx.needs_input_grad[2 : 2 + k]
    dstates = [packing.unsort(g[:B]) if needed else None for g, needed in zip(gradients, needs_state, strict=True)]
    return [dx if needs_x else None, *dstates, *(own_grads[name] if needs[name] else None for name in call.names)]


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
    gradients = torch.autograd.grad(ends, leaves, pulls, keep, allow_unused=True)
    for name, g in zip(names, gradients, strict=False):
        mine = own_grads[name]
        own_grads[name] = g if mine is None else mine if g is None else mine + g
    inner = gradients[-1] if entered.x.requires_grad else None
    return packing.unpack_steps(inner) if inner is not None and call.is_packed_first else inner
