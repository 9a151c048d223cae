"""A gated cell with heads on a GPU: the rows of all heads are one batch, and a block reads the weights of its head."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.heads import HeadsCell
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.kernels import KINDS, Gated
from seqloom.kernels.cuda.gated.scan import GatedWeights, run_job


class GatedHeads:
    """Run all heads of an RNN, GRU or LSTM, with or without layer normalisation, in one launch."""

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        assert isinstance(cell, HeadsCell)
        one = cell.first_cell()
        if one.name not in KINDS:
            return f"it is for {', '.join(KINDS)}, not {one.name or type(one).__name__!r}"
        if one.hidden_size % heuristics.HIDDEN_MULTIPLE:
            return f"it takes heads of {heuristics.HIDDEN_MULTIPLE}, {2 * heuristics.HIDDEN_MULTIPLE}, .. units"
        return Gated(KINDS[one.name]).why_not(one, cell.list_jobs(job)[0])

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the heads over the job's sequences."""
        assert isinstance(cell, HeadsCell)
        one, own = cell.first_cell(), dict(cell.own_parameters())
        gated, dtype = Gated(KINDS[one.name]), autocast_dtype(job.x.device.type) or job.x.dtype
        setting, starts = (
            gated.read_setting(one, one.hidden_size, job, dtype),
            cell.start(job.x) if job.reset is not None else (),
        )
        is_projected = setting.kind.norm  # each head normalises its part
        if is_projected:
            job = replace(job, x=cell.project(job.x))
            own = {name: w for name, w in own.items() if not name.endswith("_ih")}

        def bind(own: dict[str, Tensor]) -> Cell:
            return bind_weights(cell, own)

        return run_job(setting, job, GatedWeights.of(own), bind, starts, cell.heads, is_projected=is_projected)
