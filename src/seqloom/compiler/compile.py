"""Compile a cell: from the memory of this process, from disk, or by tracing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seqloom.compiler.fingerprint import (
    Key,
    Snapshot,
    describe,
    fingerprint,
    why_not_frozen,
    why_not_now,
    why_not_trace,
)
from seqloom.compiler.guards import NO_GUARDS, Guards
from seqloom.compiler.nodes import UnsupportedError
from seqloom.compiler.plan import PURE, Plan
from seqloom.compiler.schedule import plan
from seqloom.compiler.storage import discard_plan, load_plan, save_plan
from seqloom.compiler.trace import Extras, step_tensors, trace
from seqloom.compiler.validity import check_sizes
from seqloom.compiler.watch import Seen, watch
from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights

Result = TypeVar("Result")
MOST = 256  # maximum number of plans that a process keeps
_plans: dict[Key, tuple[Plan | str, Guards]] = {}


def compile_cell(cell: Cell, job: ScanJob) -> Plan | str:
    """Return the plan of a cell for a kind of job, or the reason why it has none.

    Args:
        cell: The cell.
        job: The job; only its shapes (except B and T) and types matter.
    """
    # In 16 bits torch's operators, such as layer_norm, are more precise than the operators into which they are traced.
    return compile_for(cell, job.x, job.state, Extras.of(job), may_project=job.x.is_cpu)


def compile_for(cell: Cell, x: Tensor, state: State, extras: Extras, may_project: bool = False) -> Plan | str:
    """Return the plan of a cell, or the reason why it has none.

    Args:
        cell: The cell.
        x: (B, T, D), for its type and D.
        state: The states before the first step, for their shapes and types.
        extras: What a job has beside x and state.
        may_project: Whether the plan may contain `cell.project`.
    """
    shapes = [part for s in state for part in (s.shape[1:], s.dtype)]
    reason = why_not_now()
    if reason is not None:
        return reason
    try:
        key = (fingerprint(cell), x.shape[2:], x.dtype, extras, may_project, *shapes)
        known, guards = _plans.get(key, (None, NO_GUARDS))
        if known is None or not guards.hold():
            reason = why_not_trace()
            if reason is not None:
                return reason
            while len(_plans) >= MOST:
                _plans.pop(next(iter(_plans)))
            known, _ = _plans[key] = _load_or_trace(cell, x, state, extras, may_project, key[1:])
    except UnsupportedError as error:  # settings cannot be compared
        return str(error)
    return known


def discard(plan: Plan, reason: str) -> None:
    """Discard a plan from disk that does not fit its cell: the next call traces the cell.

    Args:
        plan: The plan.
        reason: Why, for the warning.
    """
    discard_plan(plan, reason)
    for key in [key for key, (known, _) in _plans.items() if known is plan]:
        del _plans[key]


class Watch:
    """Guard that detects when a cell, or something that its step reads, has changed since its plan was found.

    Args:
        cell: The cell.
        plan: Its plan, just found.
    """

    def __init__(self, cell: Cell, plan: Plan) -> None:
        self.cell, self.fingerprint, self.guards = cell, fingerprint(cell), find_guards(plan)
        self.snapshot = Snapshot(cell)

    def holds(self) -> bool:
        """Return whether the plan is still valid for the cell: whether `compile_cell` would find it again."""
        return why_not_now() is None and (self.snapshot.holds() or self._compare()) and self.guards.hold()

    def holds_beside(self) -> bool:
        """Return what `holds` returns, if the items of `snapshot.dictionaries` are known to be the same."""
        return why_not_now() is None and self.snapshot.holds_beside() and self.guards.hold()

    def _compare(self) -> bool:
        """Return whether the cell's fingerprint is unchanged although an object was replaced."""
        if fingerprint(self.cell) != self.fingerprint:
            return False
        self.snapshot = Snapshot(self.cell)
        return True


def find_guards(plan: Plan) -> Guards:
    """Return the guards of a plan: it may be used only while they hold."""
    return next((guards for known, guards in _plans.values() if known is plan), NO_GUARDS)


def _load_or_trace(
    cell: Cell, x: Tensor, state: State, extras: Extras, may_project: bool, shapes: Key
) -> tuple[Plan | str, Guards]:
    reason = why_not_frozen(cell)
    if reason is not None:
        return reason, NO_GUARDS
    for name, t in step_tensors(cell).items():
        if t.is_floating_point() and t.dtype != x.dtype:
            return f"{name} is {t.dtype} and the input {x.dtype}", NO_GUARDS
    described = describe(cell)
    description = None if described is None else f"{described}\n{shapes!r}"
    sizes = [s[:1].numel() for s in state]
    shapes_of = {name: tuple(t.shape) for name, t in step_tensors(cell).items()}
    stored = None if description is None else load_plan(description, lambda p: check_sizes(p, sizes, shapes_of))
    if stored is not None:
        return stored
    try:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):  # the step may draw random numbers
            first = tuple(s[:1] for s in state)
            result, seen = _call_without_hooks(lambda: _trace(cell, x, first, extras, may_project))
    except UnsupportedError as error:
        return str(error), NO_GUARDS  # not stored on disk: it is not known which files were run
    except Exception as error:  # a bug in the compiler must not stop a cell that the loop can run
        return f"the compiler failed with {type(error).__name__}: {error}; please report this cell", NO_GUARDS
    if description is not None:
        result = save_plan(description, result, seen)
    return result, seen.guards


def _call_without_hooks(function: Callable[[], Result]) -> Result:
    """Call a function in another thread if hooks for saved tensors are active here, for example inside a checkpoint.

    Torch cannot trace derivatives under them.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, function).result()


def _trace(cell: Cell, x: Tensor, state: State, extras: Extras, may_project: bool) -> tuple[Plan, Seen]:
    """Return the plan of a cell, with its `project` if possible, and what the cell ran and read."""
    (is_alone, is_simple), seen = _watch_project(cell, x)
    if may_project and is_alone and is_simple:
        try:
            traced = trace(cell, x[:1, :1], state, extras, True)
            return replace(plan(traced, is_wide=True), projects=True), traced.seen
        except UnsupportedError:
            pass  # project or the step may be the reason: the next trace will tell
    traced = trace(cell, cell.project(x[:1, :1]), state, extras)
    return replace(plan(traced), alone=is_alone), traced.seen | seen


def _watch_project(cell: Cell, x: Tensor) -> tuple[tuple[bool, bool], Seen]:
    """Return the result of `_inspect_project`, and what `project` ran and read meanwhile."""
    try:
        return watch(lambda: _inspect_project(cell, x), cell)
    except UnsupportedError:  # it may behave differently in the next call
        return (False, False), Seen()


# Operators that torch runs faster or more precisely as a whole, such as layer_norm, are left to the cell.
_PROJECTING = (PURE - {"amax", "amin", "cumsum", "mean", "prod", "sum", "var"}) | {"addmm", "baddbmm", "t"}


class _Operators(TorchDispatchMode):
    """Note the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _inspect_project(cell: Cell, x: Tensor) -> tuple[bool, bool]:
    """Return whether `project` treats steps independently, and whether it consists of products and pointwise operators.

    Both are determined with random weights and inputs.
    """
    values = {name: torch.rand_like(w) for name, w in step_tensors(cell).items() if w.is_floating_point()}
    view, probe = bind_weights(cell, values), torch.rand(3, 2, *x.shape[2:]).to(x)
    with _Operators() as operators:
        whole = view.project(probe)
    alone = view.project(probe.flatten(0, 1).unsqueeze(1))
    if alone.shape != (6, 1, *whole.shape[2:]):
        return False, False
    is_alone = torch.allclose(whole.flatten(0, 1).float(), alone.squeeze(1).float(), rtol=1e-2, atol=1e-2)
    return is_alone, operators.names <= _PROJECTING
