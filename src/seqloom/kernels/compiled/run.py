"""A compiled cell over a sequence: packed rows, the three programs, and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.compiler.ir import Buffer, Place
from seqloom.compiler.plan import Evaluator, Known, Memory, Plan, Scan, Value
from seqloom.core.cell import State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.kernels.compiled.packing import Packing

RunProgram = Callable[[Scan, Sequence[Tensor], Packing], None]


class Compiled:
    """A plan that is ready to run.

    Args:
        plan: The plan.
        run_program: Runs one of its programs on a device.
    """

    def __init__(self, plan: Plan, run_program: RunProgram) -> None:
        self.plan, self.run_program, self.evaluator = plan, run_program, Evaluator(plan)

    def run(
        self,
        job: ScanJob,
        x: Tensor,
        state: State,
        start: State,
        own: Mapping[str, Tensor],
        project: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """Run the cell.

        Args:
            job: Lengths, resets, time spans and masks.
            x: (B, T, ...), the input of `project`, or what it returned.
            state: The states before the first step.
            start: The states after a reset; empty if the job has none.
            own: The tensors that a step reads, by name.
            project: The cell's `project`; None if x is its result.

        Returns:
            The outputs (B, T, H) and the last state.
        """
        packing = Packing.of(x.shape[0], x.shape[1], job.lengths, x.device)
        constants: dict[str, Tensor] = {}
        if job.reset is not None:
            constants["reset"] = packing.pack(job.reset)
        if job.mask is not None:
            constants["mask"] = packing.sort(job.mask.to(x.dtype))
        constants |= {f"keep_{i}": packing.pack(k.to(x.dtype)) for i, k in enumerate(job.keep)}
        if project is not None and not self.plan.alone:
            x, project = project(x), None
        packed = packing.pack(x)
        named = {"x": packed if project is None else project(packed.unsqueeze(1)).squeeze(1)}
        named |= {f"state_{i}": packing.sort(s) for i, s in enumerate(state)}
        named |= {f"start_{i}": packing.sort(s) for i, s in enumerate(start)}
        if job.dt is not None:
            named["dt"] = packing.pack(job.dt.to(x.dtype))
        named |= {f"weight {name}": own[name] for name in self.plan.weights}
        call = _Call(self, packing, constants, tuple(named))
        if torch.is_grad_enabled() and any(t.requires_grad for t in named.values()):
            y, *last = _Scan.apply(call, *named.values())
        else:
            y, last, _, _ = _run_forward(call, named, self.plan.infer)
        return packing.unpack(y), tuple(packing.unsort(s) for s in last)

    def known(self, call: _Call, named: Mapping[str, Tensor], states: Sequence[Tensor]) -> Known:
        """Return the values of the inputs, and how to find those of the states for all steps."""
        plan, packing = self.plan, call.packing
        values: dict[int, object] = {plan.weights[n]: named[f"weight {n}"] for n in plan.weights}
        later: dict[int, Callable[[], Tensor]] = {}
        for name, n in plan.inputs.items():
            tensor = named.get(name, call.constants.get(name))
            if name.startswith("state_"):
                all_steps = states[int(name.rpartition("_")[2])]
                later[n] = lambda s=all_steps: packing.states_before(s)  # type: ignore[misc]
            elif name.startswith("start_") or name == "mask":
                later[n] = lambda s=tensor: packing.spread(s)  # type: ignore[misc]
            elif tensor is not None:
                values[n] = tensor
        return Known(values, later)

    def execute(
        self, scan: Scan, call: _Call, known: Known, rows: Mapping[int, Tensor], memory: Mapping[str, Sequence[Tensor]]
    ) -> None:
        """Run a program; what it stores for all steps is known afterwards.

        Args:
            scan: The program.
            call: The packing.
            known: The values of nodes.
            rows: Inputs with one value per row for all steps, by node.
            memory: The states and their gradients, each (B + N, ...).
        """
        like, packing = memory["state"][0], call.packing
        stage = "reverse" if scan.program.reverse else "train" if scan is self.plan.train else "infer"
        self.evaluator.compute(tuple(n for n in scan.nodes() if n not in rows), known, packing.N, stage)
        tensors, stored = [], {}
        for buffer, source in zip(scan.program.buffers, scan.memory, strict=True):
            if source.kind in memory:
                t = memory[source.kind][source.index]
            elif source.kind == "stored" and source.node not in known:
                steps = packing.N if buffer.place is Place.TIME else packing.B
                t = like.new_empty(steps, buffer.size)
                if buffer.place is Place.TIME:
                    stored[source.node] = t
            else:
                t = self._read(buffer, source, known, rows, packing.N).to(like.dtype)
            tensors.append(t)
        self.run_program(scan, tensors, packing)
        known.update({n: _as_node(self.plan.values[n], t, packing.N) for n, t in stored.items()})

    def _read(self, buffer: Buffer, source: Memory, known: Known, rows: Mapping[int, Tensor], N: int) -> Tensor:
        """Return the memory of a value as a program expects it."""
        if buffer.place is Place.ROW:
            return rows[source.node].contiguous()
        t = known[source.node]
        assert isinstance(t, Tensor)
        if source.kind == "weight":
            return (t.transpose(-1, -2) if source.transposed else t).contiguous()
        return t.contiguous() if buffer.place is Place.WEIGHT else as_rows(self.plan.values[source.node], t, N)


@dataclass(frozen=True, eq=False)
class _Call:
    """What a scan and its backward share."""

    compiled: Compiled
    packing: Packing
    constants: dict[str, Tensor]
    names: tuple[str, ...]

    def rows(self, named: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Return the inputs with one value per row for all steps, by node."""
        inputs, tensors = self.compiled.plan.inputs, self.constants | dict(named)
        return {inputs[n]: tensors[n] for n in inputs if n == "mask" or n.startswith("start_")}


def as_rows(value: Value, t: Tensor, N: int) -> Tensor:
    """Return a node's value as (N, numbers of a row)."""
    d = value.batch
    assert d is not None
    if d == 0 and value.sizes[0] == 1:
        return t.reshape(N, math.prod(value.sizes)).contiguous()
    return t.unflatten(d, (N, value.sizes[d])).movedim(d, 0).reshape(N, math.prod(value.sizes)).contiguous()


def _as_node(value: Value, t: Tensor, N: int) -> Tensor:
    """Return (N, numbers of a row) in a node's own shape."""
    d = value.batch
    assert d is not None
    if d == 0 and value.sizes[0] == 1:
        return t.view(N, *value.sizes[1:])
    return t.view(N, *value.sizes).movedim(0, d).flatten(d, d + 1)


def _run_forward(
    call: _Call, named: Mapping[str, Tensor], scan: Scan
) -> tuple[Tensor, list[Tensor], list[Tensor], Known]:
    """Run a forward program: outputs (N, ...), last states (B, ...) sorted, all states, and what is known then."""
    compiled, packing = call.compiled, call.packing
    plan, B = compiled.plan, packing.B
    states = []
    for i in range(plan.states):
        first = named[f"state_{i}"]
        steps = first.new_empty(B + packing.N, *first.shape[1:])
        steps[:B] = first
        states.append(steps)
    known = compiled.known(call, named, states)
    compiled.execute(scan, call, known, call.rows(named), {"state": states})
    for i, nodes in enumerate(plan.after):
        known.update(dict.fromkeys(nodes, states[i][B:]))
    compiled.evaluator.compute((plan.results["y"],), known, packing.N, "y" if scan is plan.infer else "y, train")
    y = known[plan.results["y"]]
    assert isinstance(y, Tensor)
    return y, [packing.last_states(s).clone() for s in states], states, known


class _Scan(torch.autograd.Function):
    """The inputs by name, packed -> outputs (N, ...), last states (B, ...) sorted."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        call: _Call,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        plan, named = call.compiled.plan, dict(zip(call.names, tensors, strict=True))
        y, last, states, known = _run_forward(call, named, plan.train)
        saved = sorted({m.node for m in plan.train.memory if m.kind == "stored"} & set(known))
        ctx.call, ctx.saved = call, saved
        ctx.save_for_backward(*tensors, *states, *(known[n] for n in saved))
        if any(y.data_ptr() == s[call.packing.B :].data_ptr() for s in states):
            y = y.clone()  # a caller may change the outputs in place; the states are saved
        return y, *last

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        dy: Tensor,
        *dlast: Tensor,
    ) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        compiled, packing = call.compiled, call.packing
        plan, values = compiled.plan, read_saved(ctx)
        n, k = len(call.names), plan.states
        named, states = dict(zip(call.names, values[:n], strict=True)), values[n : n + k]
        known = compiled.known(call, named, states)
        known.update(zip(ctx.saved, values[n + k :], strict=True))
        known[plan.inputs["dy"]] = dy.contiguous()
        gradients = []
        for i, d in enumerate(dlast):
            steps = d.new_empty(packing.B + packing.N, *d.shape[1:])
            packing.put_last(steps, d)
            gradients.append(steps)
            known[plan.inputs[f"dafter_{i}"]] = steps[packing.B :]
            known.update(dict.fromkeys(plan.after[i], states[i][packing.B :]))
        rows = call.rows(named)
        compiled.execute(plan.reverse, call, known, rows, {"state": states, "gradient": gradients})
        needed = dict(zip(call.names, ctx.needs_input_grad[1:], strict=True))
        wanted = tuple(plan.results[f"d{name}"] for name in call.names if needed[name] and f"d{name}" in plan.results)
        compiled.evaluator.compute(wanted, known, packing.N, "gradients")

        def find(name: str) -> Tensor | None:
            if not needed[name]:
                return None
            if name.startswith("state_"):
                return gradients[int(name[6:])][: packing.B]
            result = known.get(plan.results.get(f"d{name}", -1))
            return packing.add_up(result) if name.startswith("start_") and result is not None else result

        return None, *(find(name) for name in call.names)
