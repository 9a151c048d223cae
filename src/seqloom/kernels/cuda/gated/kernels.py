"""GRU and LSTM, with and without layer normalisation, as kernels of the registry.

Up to 448 units the blocks of a cluster share a row's units (`<cell>_cuda`); above, groups of blocks anywhere on the GPU
do (`<cell>_grid`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels.cuda.gated import scan
from seqloom.kernels.cuda.gated.code import Kind

KINDS = {
    "gru": Kind("gru", gates=3, states=1),
    "lstm": Kind("lstm", gates=4, states=2),
    "ln_gru": Kind("gru", gates=3, states=1, norm=True),
    "ln_lstm": Kind("lstm", gates=4, states=2, norm=True, memory=True),
}


@dataclass
class Gated:
    """Run one kind of gated cell, on clusters or on groups of blocks (`grid`)."""

    kind: Kind
    grid: bool = False

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        if cell.name == "gru" and not cell.reset_after:
            return "it applies the reset gate after the product (reset_after=True)"
        if cell.name == "lstm" and cell.proj_size:
            return "it has no projected LSTM (proj_size)"
        return scan.why_not(self.kind, cell, job, self.grid)

    def why_not_auto(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why another kernel is faster for this job; None if none is."""
        return scan.why_not_auto(self.kind, cell, job, self.grid)

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences."""
        return scan.run(self.kind, cell, job, self.grid)
