"""RNN, GRU and LSTM, the last two with and without layer normalisation, on NVIDIA GPUs, as kernels of the registry.

A block, or a cluster of blocks, runs all time steps of some rows of the batch (`<cell>_cuda`); above 448 units groups
of blocks anywhere on the GPU do (`<cell>_grid`). They hold the weights in registers and shared memory; weights that do
not fit are read from the cache in every step. The state is kept in float32. The forward pass saves only the states, and
the means and deviations of layer normalisation. No host synchronisation; deterministic (no atomics).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import allows_tf32, autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.fastest import why_not_fastest
from seqloom.kernels.cuda.gated.code import GatedSetting, Kind, why_not_job, why_not_setting
from seqloom.kernels.cuda.gated.scan import GatedWeights, run_job

KINDS = {
    "gru": Kind("gru", gates=3, states=1, summed=2),
    "lstm": Kind("lstm", gates=4, states=2, summed=4),
    "ln_gru": Kind("gru", gates=3, states=1, norm=True),
    "ln_lstm": Kind("lstm", gates=4, states=2, norm=True, memory=True),
    "rnn": Kind("rnn_tanh", gates=1, states=1, summed=1),
}
RNN_KINDS = {"tanh": KINDS["rnn"], "relu": Kind("rnn_relu", gates=1, states=1, summed=1)}  # by nonlinearity


@dataclass
class Gated:
    """Run one kind of gated cell, on clusters or on groups of blocks (`grid`)."""

    kind: Kind
    grid: bool = False

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        dtype = autocast_dtype("cuda") or job.x.dtype
        if cell.name == "gru" and not cell.reset_after:
            return "it applies the reset gate after the product (reset_after=True)"
        if cell.name == "rnn" and cell.nonlinearity not in RNN_KINDS:
            return f"it has {' and '.join(RNN_KINDS)}, not {cell.nonlinearity}"
        if cell.name == "lstm" and cell.proj_size:
            return "it has no projected LSTM (proj_size)"
        multiple = heuristics.HIDDEN_MULTIPLE if self._needs_whole_tiles else 1
        reason = why_not_job(cell, job, multiple, takes_float32=not self._needs_whole_tiles)
        return reason or why_not_setting(self.read_setting(cell, round_up(cell.hidden_size), job, dtype), job)

    def why_not_auto(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why another kernel is faster for this job; None if this one is the fastest."""
        others = {"aten": _always, "grid": Gated(self.kind, grid=True).why_not}
        return why_not_fastest("grid" if self.grid else "cuda", cell, job, others)

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences; hidden sizes between two multiples of a tile run as the larger one."""
        dtype = autocast_dtype(job.x.device.type) or job.x.dtype
        starts = cell.start(job.x) if job.reset is not None else ()
        setting, own = self.read_setting(cell, round_up(cell.hidden_size), job, dtype), cell.own_parameters()

        def bind(own: dict[str, Tensor]) -> Cell:
            return bind_weights(cell, own)

        return run_job(setting, job, GatedWeights.of(own), bind, starts, units=cell.hidden_size)

    @property
    def _needs_whole_tiles(self) -> bool:
        """Whether padding would change the result: the mean of a normalisation is over all units."""
        return self.kind.norm or self.kind.memory

    def read_setting(self, cell: Cell, hidden: int, job: ScanJob, dtype: torch.dtype) -> GatedSetting:
        """Return the setting of the kernels for a job."""
        flags = job.mask is not None, bool(job.keep), job.reset is not None
        return read_options(cell, hidden, dtype, self.grid, flags)


def read_options(
    cell: Cell, hidden: int, dtype: torch.dtype, grid: bool, flags: tuple[bool, bool, bool] = (False, False, False)
) -> GatedSetting:
    """Return the setting of the kernels for a cell of KINDS.

    Args:
        cell: The cell.
        hidden: The number of units in the kernels.
        dtype: The type that they compute in.
        grid: Whether its units are divided over blocks anywhere on the GPU.
        flags: Whether a call has a mask, zoneout and resets.
    """
    kind = RNN_KINDS[cell.nonlinearity] if cell.name == "rnn" else KINDS[cell.name]
    return GatedSetting(kind, hidden, dtype, *flags, grid, dtype == torch.float32 and allows_tf32())


def _always(_cell: Cell, _job: ScanJob) -> None:
    """Return None: torch's operator runs every plain job."""


def round_up(hidden: int) -> int:
    """Return the hidden size rounded up to full tiles."""
    return -(-hidden // heuristics.HIDDEN_MULTIPLE) * heuristics.HIDDEN_MULTIPLE
