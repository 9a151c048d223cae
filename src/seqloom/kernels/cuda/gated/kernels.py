"""RNN, GRU and LSTM, the last two with and without layer normalisation, on NVIDIA GPUs, as kernels of the registry.

A block, or a cluster of blocks, runs all time steps of some rows of the batch (`<cell>_cuda`); above 448 units groups
of blocks anywhere on the GPU do (`<cell>_grid`). They hold the weights in registers and shared memory; weights that do
not fit are read from the cache in every step. The state is kept in float32. The forward pass saves only the states, and
the means and deviations of layer normalisation. No host synchronisation; deterministic (no atomics).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.heads import HeadsCell
from seqloom.core.job import ScanJob
from seqloom.core.precision import allows_tf32, autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.fastest import why_not_fastest
from seqloom.kernels.cuda.gated.code import GatedKind, GatedSetting, why_not_job, why_not_setting
from seqloom.kernels.cuda.gated.scan import GatedWeights, run_job

KINDS = {
    "gru": GatedKind("gru", gates=3, states=1, summed=2),
    "lstm": GatedKind("lstm", gates=4, states=2, summed=4),
    "ln_gru": GatedKind("gru", gates=3, states=1, norm=True),
    "ln_lstm": GatedKind("lstm", gates=4, states=2, norm=True, memory=True),
    "rnn": GatedKind("rnn_tanh", gates=1, states=1, summed=1),
}
RNN_KINDS = {"tanh": KINDS["rnn"], "relu": GatedKind("rnn_relu", gates=1, states=1, summed=1)}  # by nonlinearity


@dataclass
class Gated:
    """Run gated cells on clusters, or on groups of blocks (`grid`); the heads of a cell in one launch."""

    grid: bool = False

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        one, first = read_head(cell), job
        if isinstance(cell, HeadsCell):
            if one.name not in KINDS:
                return f"it is for {', '.join(KINDS)}, not {one.name or type(one).__name__!r}"
            if one.hidden_size % heuristics.HIDDEN_MULTIPLE:
                return f"it takes heads of {heuristics.HIDDEN_MULTIPLE}, {2 * heuristics.HIDDEN_MULTIPLE}, .. units"
            one, first = cell.first_cell(), cell.list_jobs(job)[0]
        if one.name == "gru" and not one.reset_after:
            return "it applies the reset gate after the product (reset_after=True)"
        if one.name == "rnn" and one.nonlinearity not in RNN_KINDS:
            return f"it has {' and '.join(RNN_KINDS)}, not {one.nonlinearity}"
        if one.name == "lstm" and one.proj_size:
            return "it has no projected LSTM (proj_size)"
        is_whole = KINDS[one.name].norm  # padding would change the mean of a normalisation, which is over all units
        multiple = heuristics.HIDDEN_MULTIPLE if is_whole else 1
        reason = why_not_job(one, first, multiple, takes_float32=not is_whole)
        dtype = autocast_dtype("cuda") or job.x.dtype
        return reason or why_not_setting(read_options(one, dtype, self.grid, job), first)

    def why_not_auto(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why another kernel is faster for this job; None if this one is the fastest."""
        others = {"aten": _always, "grid": Gated(grid=True).why_not}
        return why_not_fastest("grid" if self.grid else "cuda", cell, job, others)

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences; hidden sizes between two multiples of a tile run as the larger one."""
        one, own, heads = read_head(cell), dict(cell.own_parameters()), count_heads(cell)
        setting = read_options(one, autocast_dtype(job.x.device.type) or job.x.dtype, self.grid, job)
        starts = cell.start(job.x) if job.reset is not None else ()
        is_projected = heads > 1 and setting.kind.norm  # each head normalises its part
        if is_projected:
            job = replace(job, x=cell.project(job.x))
            own = {name: w for name, w in own.items() if not name.endswith("_ih")}
        bind = partial(bind_weights, cell)
        return run_job(setting, job, GatedWeights.of(own), bind, starts, heads, one.hidden_size, is_projected)


def read_head(cell: Cell) -> Cell:
    """Return the cell whose equations every head has; the cell itself if it has no heads."""
    one: Cell = cell.__dict__["one"] if isinstance(cell, HeadsCell) else cell
    return one


def count_heads(cell: Cell) -> int:
    """Return the number of heads of a cell."""
    return cell.heads if isinstance(cell, HeadsCell) else 1


def read_options(cell: Cell, dtype: torch.dtype, grid: bool, job: ScanJob | None = None) -> GatedSetting:
    """Return the setting of the kernels for a cell of KINDS.

    Args:
        cell: The cell, or a head of it.
        dtype: The type that the kernels compute in.
        grid: Whether its units are divided over blocks anywhere on the GPU.
        job: What has a mask, zoneout and resets; None if there is neither.
    """
    kind = RNN_KINDS[cell.nonlinearity] if cell.name == "rnn" else KINDS[cell.name]
    flags = (False,) * 3 if job is None else (job.mask is not None, bool(job.keep), job.reset is not None)
    tf32 = dtype == torch.float32 and allows_tf32()
    return GatedSetting(kind, round_up(cell.hidden_size), dtype, *flags, grid, tf32)


def _always(_cell: Cell, _job: ScanJob) -> None:
    """Return None: torch's operator runs every plain job."""


def round_up(hidden: int) -> int:
    """Return the hidden size rounded up to full tiles."""
    return -(-hidden // heuristics.HIDDEN_MULTIPLE) * heuristics.HIDDEN_MULTIPLE
