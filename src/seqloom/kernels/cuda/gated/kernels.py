"""RNN, GRU and LSTM, the last two with and without layer normalisation, on NVIDIA GPUs, as kernels of the registry.

A block, or a cluster of blocks, takes some rows of the batch through all of time (`<cell>_cuda`); above 448 units
groups of blocks anywhere on the GPU do (`<cell>_grid`). They hold the weights in registers and shared memory; what does
not fit comes from the cache in every step. The state is carried in float32. The forward saves the states alone, and the
means and deviations of layer normalisation. No host synchronisation; deterministic (no atomics).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import allows_tf32, autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.code import GatedSetting, Kind, why_not_job, why_not_setting
from seqloom.kernels.cuda.gated.input_norm import InputNorm
from seqloom.kernels.cuda.gated.scan import GatedInputs, run_scan

KINDS = {
    "gru": Kind("gru", gates=3, states=1, summed=2),
    "lstm": Kind("lstm", gates=4, states=2, summed=4),
    "ln_gru": Kind("gru", gates=3, states=1, norm=True),
    "ln_lstm": Kind("lstm", gates=4, states=2, norm=True, memory=True),
    "rnn": Kind("rnn_tanh", gates=1, states=1, summed=1),
}
RNN_KINDS = {"tanh": KINDS["rnn"], "relu": Kind("rnn_relu", gates=1, states=1, summed=1)}  # by nonlinearity
# The kernels' names of the weights, and the cells', which may lack some.
CELL_WEIGHTS = {
    "weight": "weight_hh",
    "bias": "bias_hh",
    "scale": "scale_hh",
    "scale_c": "scale_c",
    "bias_c": "bias_c",
}


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
        """Return why another kernel is faster for this job; None if none is."""
        dtype, H, (B, T) = autocast_dtype("cuda") or job.x.dtype, cell.hidden_size, job.x.shape[:2]
        takes_cudnn = job.is_plain and not self._needs_whole_tiles and T <= heuristics.CUDNN_MOST_STEPS
        if takes_cudnn and is_cudnn_faster(cell.name, dtype, H, B, T):
            name = str(dtype).removeprefix("torch.")
            return f"torch's own (cuDNN) is faster in {name} with {H} units, {B} rows and {T} steps"
        narrow = heuristics.GATED_CLUSTER_HIDDEN[dtype.itemsize]
        takes_grid = narrow < H or is_measured(heuristics.GATED_GRID_FASTER, cell.name, dtype, H, B)
        if self.grid:
            return None if takes_grid else f"{cell.name}_cuda is faster with {H} units and {B} rows"
        leaves = takes_grid and Gated(self.kind, grid=True).why_not(cell, job) is None
        return f"{cell.name}_grid is faster with {H} units and {B} rows" if leaves else None

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences; hidden sizes between two multiples of a tile run as the larger one."""
        H, own = cell.hidden_size, cell.own_parameters()
        more = round_up(H) - H
        if not more:
            return self._run(cell, job, own)
        padded = {name: pad_weight(name, w, self.kind.gates, more) for name, w in own.items()}
        view = bind_weights(cell, padded)
        view.hidden_size = view.output_size = H + more
        state, keep = (tuple(F.pad(t, (0, more)) for t in part) for part in (job.state, job.keep))
        mask = None if job.mask is None else F.pad(job.mask, (0, more))
        y, last = self._run(view, replace(job, state=state, keep=keep, mask=mask), padded)
        return y[..., :H].contiguous(), tuple(s[..., :H].contiguous() for s in last)

    def _run(self, cell: Cell, job: ScanJob, w: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        dtype = autocast_dtype(job.x.device.type) or job.x.dtype
        start = cell.start(job.x) if job.reset is not None else ()

        def bind(own: Mapping[str, Tensor]) -> Cell:
            return bind_weights(cell, {CELL_WEIGHTS[name]: t for name, t in own.items()})

        inputs = GatedInputs.of(self.read_setting(cell, cell.hidden_size, job, dtype), bind, job)
        own = {name: w.get(theirs) for name, theirs in CELL_WEIGHTS.items()}
        x = self._project(cell, job.x.contiguous(), w)  # otherwise the product copies it, and adds the bias by itself
        y, last = run_scan(inputs, x, own, job.state, start)
        return y, tuple(s.to(t.dtype) for s, t in zip(last, job.state, strict=True))

    def _project(self, cell: Cell, x: Tensor, w: Mapping[str, Tensor]) -> Tensor:
        """Do what `cell.project` does, with layer normalisation in one pass over memory."""
        if not self.kind.norm:
            return cell.project(x)
        product = F.linear(x, w["weight_ih"])
        scale, bias = (w[name].to(product.dtype) for name in ("scale_ih", "bias_ih"))
        y: Tensor = InputNorm.apply(product, scale, bias, self.kind.gates)
        return y

    @property
    def _needs_whole_tiles(self) -> bool:
        """Whether padding would change the result: the mean of a normalisation is over all units."""
        return self.kind.norm or self.kind.memory

    def read_setting(self, cell: Cell, hidden: int, job: ScanJob, dtype: torch.dtype) -> GatedSetting:
        """Return the setting of the kernels for a job."""
        flags = job.mask is not None, bool(job.keep), job.reset is not None
        kind = RNN_KINDS[cell.nonlinearity] if cell.name == "rnn" else self.kind
        return GatedSetting(kind, hidden, dtype, *flags, self.grid, dtype == torch.float32 and allows_tf32())


def is_cudnn_faster(cell: str, dtype: torch.dtype, hidden: int, rows: int, steps: int) -> bool:
    """Return whether cuDNN was measured to be faster for this cell, with gradients if they are enabled."""
    return is_measured(heuristics.CUDNN_FASTER, cell, dtype, hidden, rows, steps)


def is_measured(
    regions: Sequence[heuristics.Region], cell: str, dtype: torch.dtype, hidden: int, rows: int, steps: int = 512
) -> bool:
    """Return whether one of the regions has this cell, with gradients if they are enabled."""
    trains = torch.is_grad_enabled()
    name = "tf32" if dtype == torch.float32 and allows_tf32() else str(dtype).removeprefix("torch.")
    return any(
        cell in region.cells
        and name in region.types
        and region.hidden[0] <= hidden <= region.hidden[1]
        and region.rows[0] <= rows <= region.rows[1]
        and region.steps[0] <= steps <= region.steps[1]
        and region.trains in (None, trains)
        for region in regions
    )


def round_up(hidden: int) -> int:
    """Return the hidden size in whole tiles."""
    return -(-hidden // heuristics.HIDDEN_MULTIPLE) * heuristics.HIDDEN_MULTIPLE


def pad_weight(name: str, w: Tensor, gates: int, more: int) -> Tensor:
    """Return a weight for `more` units, with zeros for them: a GRU then halves their state at every step.

    An LSTM halves their memory. So they stay 0, and no other unit sees them.
    """
    if name.startswith("initial_"):
        return F.pad(w, (0, more))
    columns = (0, more if name == "weight_hh" else 0) if w.dim() == 2 else ()
    return F.pad(w.unflatten(0, (gates, -1)), (*columns, 0, more)).flatten(0, 1)
