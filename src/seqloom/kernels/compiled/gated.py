"""Compiled cells in the gated GPU kernels, which carry rows through time without leaving the GPU's registers.

Torch computes what needs no state, for all steps, and the gradients of all weights; the kernels run the rest of the
step and its derivative, as source code that the compiler generates for one unit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from types import new_class

import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.compiler.compile import compile_for, discard, find_guards
from seqloom.compiler.evaluation import Evaluator, Known
from seqloom.compiler.fingerprint import Key, fingerprint, why_not_frozen, why_not_now
from seqloom.compiler.gated import GatedProgram, Plane, fit_gated
from seqloom.compiler.gated_text import find_unit, run_unit
from seqloom.compiler.guards import NO_GUARDS, Guards
from seqloom.compiler.nodes import UnsupportedError
from seqloom.compiler.plan import Plan, UnfitError
from seqloom.compiler.storage import is_discarded
from seqloom.compiler.trace import Extras, step_tensors
from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.compiled.stages import as_rows
from seqloom.kernels.compiled.validation import Verdicts
from seqloom.kernels.cuda.gated.code import GatedKind, GatedSetting, why_not_job, why_not_setting
from seqloom.kernels.cuda.gated.scan import GatedWeights, run_job

GRID_MOST_GATES = 4  # on a grid, the weights of more gates do not fit into a block's registers and shared memory
MOST = 256  # maximum number of cells that a process keeps


def find(cell: Cell, job: ScanJob) -> FittingCell | str:
    """Return a cell as the gated kernels run it, or why this cell or job cannot run in them."""
    reason = why_not_job(cell, job)
    if reason is not None:
        return reason
    try:
        prepared = prepare(cell, job)
    except UnsupportedError as error:
        return str(error)
    dtype = autocast_dtype("cuda") or job.x.dtype
    setting = _choose_setting(prepared.kind, cell.hidden_size, dtype, job)
    return _why_not_zoneout(prepared, cell, job) or why_not_setting(setting, job) or prepared


def why_not_fit(cell: Cell, job: ScanJob) -> str | None:
    """Return why the equations of this cell do not fit the gated kernels, whatever the device; None if they do."""
    try:
        return _why_not_zoneout(prepare(cell, job), cell, job)
    except UnsupportedError as error:
        return str(error)


def _why_not_zoneout(prepared: FittingCell, cell: Cell, job: ScanJob) -> str | None:
    if not job.keep:
        return None
    probe = tuple(empty(1, cell.hidden_size) for _ in job.state)
    is_state = prepared.output < len(probe) and cell.output(probe) is probe[prepared.output]
    return None if is_state else "with zoneout the output must be one of the states"


def run(cell: Cell, job: ScanJob, prepared: FittingCell) -> tuple[Tensor, State]:
    """Run a cell that `find` has returned over the job's sequences."""
    dtype = autocast_dtype(job.x.device.type) or job.x.dtype
    setting = _choose_setting(prepared.kind, cell.hidden_size, dtype, job)
    x = cell.project(job.x)
    start = cell.start(job.x) if job.reset is not None else ()
    with torch.autocast(job.x.device.type, enabled=False):
        return prepared.run(setting, cell, job, x, start)


def _choose_setting(kind: GatedKind, hidden: int, dtype: torch.dtype, job: ScanJob) -> GatedSetting:
    flags = job.mask is not None, bool(job.keep), job.reset is not None
    grid = hidden > heuristics.GATED_CLUSTER_HIDDEN[dtype.itemsize] and kind.gates <= GRID_MOST_GATES
    return GatedSetting(kind, hidden, dtype, *flags, grid)


@dataclass(frozen=True, eq=False)
class FittingCell:
    """A cell that fits the gated kernels.

    Attributes:
        plan: The compiled step, for what torch computes before the loop.
        fitted: The cell as code for one unit.
        kind: The cell for the kernels.
    """

    plan: Plan
    fitted: GatedProgram
    kind: GatedKind

    @property
    def output(self) -> int:
        """The index of the state that is the output; the number of states if none is."""
        return self.fitted.states[self.fitted.output]

    @cached_property
    def verdicts(self) -> Verdicts:
        """Results of the checks against the loop."""
        return Verdicts(self.plan, "gated")

    @cached_property
    def evaluator(self) -> Evaluator:
        """Computes nodes with torch."""
        return Evaluator(self.plan)

    def run(self, setting: GatedSetting, cell: Cell, job: ScanJob, x: Tensor, start: State) -> tuple[Tensor, State]:
        """Run the cell.

        Args:
            setting: Size, type, and options of the job.
            cell: The cell.
            job: The sequences.
            x: (B, T, ...), what `cell.project` returned.
            start: The states after a reset; empty if the job has none.
        """
        fitted, H, dtype = self.fitted, setting.hidden, setting.dtype
        B, T = x.shape[:2]
        known = self._find_known(cell, job, x, dtype)
        biases = [g.bias for g in fitted.gates]
        planes = [p for p in (*fitted.inputs, *fitted.vectors, *biases) if p is not None]
        nodes = dict.fromkeys([*(p.node for p in planes), *(g.weight for g in fitted.gates)])
        self.evaluator.compute(tuple(nodes), known, B * T, "inputs", dtype)
        bias = self._join(biases, known, H).to(dtype) if any(biases) else None
        vectors = self._join(fitted.vectors, known, H).to(dtype) if fitted.vectors else None
        own = GatedWeights(self._join_weights(known, H).to(dtype), bias, vectors=vectors)
        values = self._join(fitted.inputs, known, H, B * T).view(B, T, -1).to(dtype)
        order = fitted.states
        # an output that is not a state is carried like one, but nothing reads its old value
        blank = tuple(x.new_zeros(B, H) for _ in order[len(job.state) :])
        state, first = (*job.state, *blank), (*start, *blank) if start else ()
        ordered = _reorder(job, values, tuple(state[i] for i in order), order)
        starts = tuple(first[i] for i in order if first)
        bind = partial(self._bind, cell)
        y, last = run_job(setting, ordered, own, bind, starts, is_projected=True)
        return y, tuple(last[order.index(i)] for i in range(len(job.state)))

    def _find_known(self, cell: Cell, job: ScanJob, x: Tensor, dtype: torch.dtype) -> Known:
        """Return the values of the inputs of all steps and of the weights, in one type."""
        inputs, own = self.plan.inputs, step_tensors(cell)
        values: dict[int, object] = {inputs["x"]: _convert(x.flatten(0, 1), dtype)}
        if job.dt is not None:
            values[inputs["dt"]] = _convert(job.dt.flatten(), dtype)
        return Known(values, {n: partial(_convert, own[name], dtype) for name, n in self.plan.weights.items()})

    def _join(self, planes: Sequence[Plane | None], known: Known, H: int, rows: int = 0) -> Tensor:
        """Return planes side by side: (rows, planes * H), or without rows (planes * H,); zeros for None.

        Adjacent planes of one node are one slice, and a single slice is not copied.
        """
        pieces: list[tuple[Plane | None, int]] = []
        for plane in planes:
            first, count = pieces[-1] if pieces else (None, 0)
            if first is not None and first.stride and plane == Plane(first.node, first.offset + H * count, 1):
                pieces[-1] = first, count + 1
            else:
                pieces.append((plane, 1))
        parts = [self._read(plane, known, H, H * count, rows) for plane, count in pieces]
        like = next(p for p in parts if p is not None)
        every = [torch.zeros_like(like[..., :H]) if p is None else p for p in parts]
        return torch.cat(every, -1) if len(every) > 1 else every[0]

    def _read(self, plane: Plane | None, known: Known, H: int, size: int, rows: int) -> Tensor | None:
        if plane is None:
            return None
        t = known[plane.node]
        assert isinstance(t, Tensor)
        flat = as_rows(self.plan.values[plane.node], t, rows) if rows else t.reshape(-1)
        size = size if plane.stride else 1
        part = flat[..., plane.offset : plane.offset + size]
        if part.shape[-1] != size:  # the kernels read by address
            raise UnfitError(f"node {plane.node} has {flat.shape[-1]} numbers, {size} are read from {plane.offset} on")
        return part if plane.stride else part.expand(*flat.shape[:-1], H)

    def _join_weights(self, known: Known, H: int) -> Tensor:
        """Return the weights of all gates, (gates * H, H)."""
        pieces: list[list[int]] = []  # node, first column, columns: adjacent columns are merged
        turned = {g.weight: g.transposed for g in self.fitted.gates}
        for g in self.fitted.gates:
            if pieces and pieces[-1][0] == g.weight and sum(pieces[-1][1:]) == g.offset:
                pieces[-1][2] += H
            else:
                pieces.append([g.weight, g.offset, H])
        rows = []
        for node, first, count in pieces:
            t = known[node]
            assert isinstance(t, Tensor)
            t = t.reshape(t.shape[-2:])
            part = (t if turned[node] else t.t())[first : first + count]
            if part.shape != (count, H):
                raise UnfitError(f"weight {node} has {tuple(t.shape)} numbers, {count} x {H} are read from {first} on")
            rows.append(part)
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    def _bind(self, cell: Cell, own: Mapping[str, Tensor]) -> Cell:
        """Return a cell that runs the unit's code on the kernels' x and states."""
        view, fitted = copy.copy(cell), self.fitted

        def step(x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
            seen = state[0] if mask is None else state[0] * mask
            u = F.linear(seen, own["weight_hh"], own.get("bias_hh"))
            H = state[0].shape[-1]
            vectors = [v.expand_as(state[0]) for v in own["vectors"].split(H)] if fitted.vectors else []
            after = run_unit(fitted.unit, [*x.split(H, -1), *u.split(H, -1), *state, *vectors])
            return after[fitted.output], tuple(after)

        view.step = step  # type: ignore[method-assign]
        view.output = lambda state: state[fitted.output]  # type: ignore[method-assign]
        return view


def _reorder(job: ScanJob, x: Tensor, state: State, order: Sequence[int]) -> ScanJob:
    keep = tuple(job.keep[i] for i in order) if job.keep else ()
    return ScanJob(x, state, job.lengths, job.reset, None, job.mask, keep)


def _convert(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype) if t.is_floating_point() else t


_prepared: dict[Key, tuple[FittingCell | str, Guards]] = {}


def prepare(cell: Cell, job: ScanJob) -> FittingCell:
    """Compile a cell for the gated kernels, or return what an earlier call compiled.

    Raises:
        UnsupportedError: If the cell cannot be compiled or does not fit.
    """
    extras = Extras(mask=job.mask is not None, dt=job.dt is not None)  # the kernels have resets, zoneout and lengths
    key = (fingerprint(cell), job.x.shape[2:], extras, *(s.shape[1:] for s in job.state))
    known, guards = _prepared.get(key, (None, NO_GUARDS))
    if isinstance(known, FittingCell) and is_discarded(known.plan):
        known = None
    result = why_not_now() or (known if guards.hold() else None) or why_not_frozen(cell)
    if result is None:
        while len(_prepared) >= MOST:
            _prepared.pop(next(iter(_prepared)))
        try:
            with torch.autocast("cpu", enabled=False):  # traces run on the CPU
                result = _compile(cell, job, extras)
        except UnsupportedError as error:
            result = str(error)
        _prepared[key] = result, find_guards(result.plan) if isinstance(result, FittingCell) else NO_GUARDS
    if isinstance(result, str):
        raise UnsupportedError(result)
    return result


@cache
def _carry_output(kind: type[Cell]) -> type[Cell]:
    """Return a class of cells whose last state is their output."""

    def step(self: Cell, x: Tensor, state: State, **extra: Tensor) -> tuple[Tensor, State]:
        y, after = kind.step(self, x, state[:-1], **extra)
        return y, (*after, y)

    name = f"{kind.__module__}.{kind.__qualname__} with its output"  # stored plans use it as a key
    members = {"step": step, "__module__": __name__, "__qualname__": name}
    carried: type[Cell] = new_class(f"{kind.__name__}WithOutput", (kind,), None, lambda body: body.update(members))
    carried.takes = kind.takes
    return carried


def _compile(cell: Cell, job: ScanJob, extras: Extras) -> FittingCell:
    def example(t: Tensor) -> Tensor:  # in float32: a trace in 16 bits has conversions
        return t.detach().to("cpu", torch.float32) if t.is_floating_point() else t.detach().cpu()

    view = bind_weights(cell, {name: example(t) for name, t in step_tensors(cell).items()})
    x, state = example(job.x[:1, :1]), tuple(example(s[:1]) for s in job.state)
    compiled = compile_for(view, x, state, extras)
    if isinstance(compiled, Plan) and all(compiled.results["y"] not in nodes for nodes in compiled.after):
        view.__class__ = _carry_output(type(cell))
        compiled = compile_for(view, x, (*state, x.new_zeros(1, cell.output_size)), extras)
    if isinstance(compiled, str):
        raise UnsupportedError(compiled)
    try:
        fitted = fit_gated(compiled, cell.hidden_size)
    except UnsupportedError:
        raise
    except Exception as error:
        if not compiled.is_loaded:
            raise
        discard(compiled, f"{type(error).__name__}: {error}")
        return _compile(cell, job, extras)
    kind = GatedKind(
        type(cell).__name__,
        len(fitted.gates),
        len(fitted.states),
        inputs=len(fitted.inputs),
        vectors=len(fitted.vectors),
        output=fitted.output,
        unit=find_unit(fitted),
    )
    return FittingCell(compiled, fitted, kind)
