"""The kernel of every cell that the compiler can compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from seqloom.compiler.compile import compile_cell, discard
from seqloom.compiler.nodes import UnsupportedError
from seqloom.compiler.plan import Plan, Scan, UnfitError
from seqloom.compiler.report import summarize
from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights, read_tensors
from seqloom.kernels import heuristics, loop
from seqloom.kernels.compiled import gated
from seqloom.kernels.compiled.gated import FittingCell
from seqloom.kernels.compiled.gpu import run_on_gpu, why_not_gpu
from seqloom.kernels.compiled.packing import Packing
from seqloom.kernels.compiled.run import Compiled
from seqloom.kernels.cpu.engine import why_not_cpu
from seqloom.kernels.cpu.kept_memory import kept_memory
from seqloom.kernels.cpu.machine import Encoded, Rows, encode, run_trusted, why_not_machine
from seqloom.kernels.fused import flatten_loop, why_not_fused


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return why this cell or job cannot run here; None if it can."""
    found = _find(cell, job)
    return found if isinstance(found, str) else None


def prepare(cell: Cell, job: ScanJob) -> Found | str:
    """Return an object that runs jobs like this one as long as the cell does not change, or why there is none."""
    found = _find(cell, job)
    return found if isinstance(found, str) else Found(found)


class Found:
    """A compiled cell that was found for one job.

    Args:
        code: Programs, or a cell for the gated GPU kernels.

    Attributes:
        is_unfit: Whether it turned out not to fit the cell, so that another one was found.
    """

    def __init__(self, code: FittingCell | Compiled) -> None:
        self.code, self.is_unfit = code, False

    def __call__(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences."""
        try:
            if isinstance(self.code, FittingCell):
                return gated.run(cell, job, self.code)
            return _run_in_type(self.code, cell, job)
        except UnfitError as error:
            self.is_unfit = True
            _find_again(self.code.plan, error, cell, job)
        return run(cell, job)


def _find(cell: Cell, job: ScanJob) -> FittingCell | Compiled | str:
    """Return the cell in the form of the gated GPU kernels, or its programs, or why it has neither."""
    if job.x.is_cuda:
        prepared = gated.find(cell, job)
        if isinstance(prepared, FittingCell):
            try:
                if _is_valid(prepared, cell, job):
                    return prepared
            except UnfitError as error:
                return _find_again(prepared.plan, error, cell, job)
        job = _leave_autocast(cell, job)
        reason = why_not_gpu(cell, job) or _why_not_masks(job) or _why_not_recording(job)
    else:
        reason = why_not_cpu(cell, job, takes_dt=True) or why_not_machine() or why_not_fused()
    if reason is not None:
        return reason
    if 0 in job.x.shape[:2]:
        return "there is no step to run"
    plan = compile_cell(cell, job)
    if isinstance(plan, str):
        return plan
    reason = _why_not_draws(plan, job)
    if reason is not None:
        return reason
    try:
        compiled = _prepare(plan, job.x.is_cuda)
        if isinstance(compiled, str):
            return compiled
        return compiled.verdicts.find(cell, job, partial(_run_in_type, compiled)) or compiled
    except Exception as error:
        return _find_again(plan, error, cell, job)


def _find_again(plan: Plan, error: Exception, cell: Cell, job: ScanJob) -> FittingCell | Compiled | str:
    """Retrace a cell whose stored plan cannot be used; raise the error if the plan was traced in this process."""
    if not plan.is_loaded:
        raise error
    discard(plan, f"{type(error).__name__}: {error}")
    return _find(cell, job)


def _is_valid(prepared: FittingCell, cell: Cell, job: ScanJob) -> bool:
    return prepared.verdicts.find(cell, job, partial(gated.run, prepared=prepared)) is None


def _leave_autocast(cell: Cell, job: ScanJob) -> ScanJob:
    """Return a job in the type of the cell's weights if autocast would run products in another one."""
    if autocast_dtype(job.x.device.type) is None:
        return job
    dtype = next((p.dtype for p in cell.own_parameters().values() if p.is_floating_point()), job.x.dtype)
    if all(t.dtype == dtype for t in (job.x, *job.state)):
        return job
    return replace(job, x=job.x.to(dtype), state=tuple(s.to(dtype) for s in job.state))


def _why_not_masks(job: ScanJob) -> str | None:
    if any(t is not None and t.requires_grad for t in (job.mask, *job.keep)):
        return "compiled programs compute no gradients of dropout masks"
    return None


def _why_not_recording(job: ScanJob) -> str | None:
    if job.lengths is not None and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph that is being recorded cannot wait for the lengths of the rows"
    return None


def _why_not_draws(plan: Plan, job: ScanJob) -> str | None:
    if not (plan.draws and job.x.is_cuda):
        return None
    if autocast_dtype("cuda") is not None:
        return "step draws random numbers, whose type differs under autocast"
    chance = next((draw for draw in plan.draws if draw.kind == "chance"), None)
    if chance is not None:
        return f"step calls torch.bernoulli with probabilities, which draws in another order on a GPU{chance.line}"
    if torch.cuda.is_current_stream_capturing():
        return "step draws random numbers while a CUDA graph is being recorded"
    return None


def why_not_auto(cell: Cell, job: ScanJob) -> str | None:
    """Return why another kernel should run this job; None if this one should."""
    reason = why_not_fused()  # before the length is read: an export would keep it
    if reason is not None:
        return reason
    if cell.name in heuristics.SLOW_TO_COMPILE and (job.x.is_cuda or job.x.shape[1] < heuristics.SLOW_TO_COMPILE_STEPS):
        least = "" if job.x.is_cuda else f", too long for fewer than {heuristics.SLOW_TO_COMPILE_STEPS} steps"
        return f"compiling it takes seconds{least}; choose it with kernel='compiled'"
    if job.x.shape[1] < heuristics.COMPILED_STEPS:
        return f"the loop is as fast for fewer than {heuristics.COMPILED_STEPS} steps"
    return None


def describe(cell: Cell, job: ScanJob) -> str:
    """Return what was compiled, in one phrase."""
    plan = compile_cell(cell, job)
    return plan if isinstance(plan, str) else summarize(plan)


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Run the cell over the job's sequences, on a GPU in the gated kernels if it fits them."""
    found = prepare(cell, job)
    return loop.run(cell, job) if isinstance(found, str) else found(cell, job)  # it may have changed since the choice


def _run_in_type(compiled: Compiled, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Run programs in the type of the cell's weights, even under autocast."""
    if job.x.is_cuda and autocast_dtype("cuda") is not None:
        matched = _leave_autocast(cell, job)
        with torch.autocast("cuda", enabled=False):
            y, state = _run_programs(compiled, cell, matched)
        return y, tuple(s.to(before.dtype) for s, before in zip(state, job.state, strict=True))
    return _run_programs(compiled, cell, job)


def _run_programs(compiled: Compiled, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    plan = compiled.plan
    own = read_tensors(cell, plan.weights)
    if job.reset is not None:  # the states after a reset may be learned
        own |= read_tensors(cell, [n for n in cell.own_parameters() if n.startswith("initial_")])

    def enter(x: Tensor, values: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        view = cell if values is own else bind_weights(cell, values)
        rows = x if plan.projects else view.project(x)  # first, as in the loop: both may draw random numbers
        return rows, view.start(x) if job.reset is not None else ()

    slow, is_direct = flatten_loop(cell, job, tuple(own)), plan.projects and job.reset is None
    return compiled.run_cell(job, job.x, job.state, own, None if is_direct else enter, slow)


@lru_cache(maxsize=256)
def encode_plan(plan: Plan) -> dict[Scan, Encoded]:
    """Translate the programs of a plan for the engine."""
    return {scan: encode(scan.program) for scan in (plan.infer, plan.train, plan.reverse)}


@lru_cache(maxsize=256)
def _prepare(plan: Plan, on_gpu: bool) -> Compiled | str:
    """Prepare the programs of a plan; return why that is not possible."""
    try:
        if on_gpu:
            return Compiled(plan, run_on_gpu)
        encoded = encode_plan(plan)
        return Compiled(plan, partial(_run_on_cpu, encoded), is_direct=True, allocate=kept_memory.allocate)
    except UnsupportedError as error:
        if plan.is_loaded:
            raise UnfitError(str(error)) from error
        return str(error)


def _run_on_cpu(
    encoded: Mapping[Scan, Encoded], scan: Scan, tensors: Sequence[Tensor | None], packing: Packing
) -> None:
    rows = Rows(packing.B, packing.T, packing.N, packing.offset, packing.count)
    run_trusted(encoded[scan], tensors, rows)
