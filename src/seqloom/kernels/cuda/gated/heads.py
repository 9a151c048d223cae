"""A gated cell with heads on a GPU: the rows of all heads are one batch, and a block reads the weights of its head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.heads import HeadsCell
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.kernels import CELL_WEIGHTS, KINDS, Gated
from seqloom.kernels.cuda.gated.scan import GatedInputs, run_scan

GROUP = 16  # rows of the largest group, all of one head


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
        one, n, B = cell.first_cell(), cell.heads, len(job.x)

        def gather(t: Tensor) -> Tensor:
            return _gather_rows(t, n, -B % GROUP)

        def repeat(t: Tensor | None) -> Tensor | None:
            return None if t is None else _pad_rows(t, -B % GROUP).repeat(n, *[1] * (t.dim() - 1))

        state, keep = (tuple(map(gather, part)) for part in (job.state, job.keep))
        start = () if job.reset is None else tuple(map(gather, cell.start(job.x)))
        mask = None if job.mask is None else gather(job.mask)
        x = gather(_project(cell, one, job.x))
        rows = ScanJob(x, state, repeat(job.lengths), repeat(job.reset), None, mask, keep)
        dtype = autocast_dtype(x.device.type) or x.dtype
        setting = Gated(KINDS[one.name]).read_setting(one, one.hidden_size, rows, dtype)
        inputs = GatedInputs.of(setting, lambda own: _RowsOfHeads(one, own, n), rows, n)
        own = cell.own_parameters()
        named = {name: own[theirs].flatten(0, 1) for name, theirs in CELL_WEIGHTS.items() if theirs in own}
        y, last = run_scan(inputs, x, named, state, start)
        return _scatter_rows(y, n, B), tuple(
            _scatter_rows(s, n, B).to(t.dtype) for s, t in zip(last, job.state, strict=True)
        )


class _RowsOfHeads(Cell):
    """A cell over rows of all heads, one head after the other; the loop runs it for second derivatives."""

    takes = frozenset({"mask"})

    def __init__(self, one: Cell, own: Mapping[str, Tensor], heads: int) -> None:
        super().__init__(one.input_size, one.hidden_size)
        parts = {CELL_WEIGHTS[name]: w.unflatten(0, (heads, -1)).unbind(0) for name, w in own.items()}
        views = [bind_weights(one, {name: each[k] for name, each in parts.items()}) for k in range(heads)]
        self.__dict__["views"] = views

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        views = self.__dict__["views"]
        states = zip(*(s.chunk(len(views)) for s in state), strict=True)
        masks = [None] * len(views) if mask is None else mask.chunk(len(views))
        results = [
            view.step(x_k, s_k, mask=mask_k)
            for view, x_k, s_k, mask_k in zip(views, x.chunk(len(views)), states, masks, strict=True)
        ]
        after = zip(*(s for _, s in results), strict=True)
        return torch.cat([y for y, _ in results]), tuple(torch.cat(parts) for parts in after)

    def output(self, state: State) -> Tensor:
        output: Tensor = self.__dict__["views"][0].output(state)
        return output


def _project(cell: HeadsCell, one: Cell, x: Tensor) -> Tensor:
    """Project the input of all heads: in one product if the cell does nothing else to it."""
    if one.name not in ("gru", "lstm", "rnn"):
        return cell.project(x)
    own = cell.own_parameters()
    bias = own.get("bias_ih")
    return F.linear(x.contiguous(), own["weight_ih"].flatten(0, 1), None if bias is None else bias.flatten())


def _pad_rows(t: Tensor, more: int) -> Tensor:
    """Append rows of zeros."""
    return F.pad(t, (*[0] * (2 * t.dim() - 2), 0, more)) if more else t


def _gather_rows(t: Tensor, heads: int, more: int) -> Tensor:
    """Map (B, .., heads * n) to (heads * (B + more), .., n)."""
    return _pad_rows(t, more).unflatten(-1, (heads, -1)).movedim(-2, 0).flatten(0, 1)


def _scatter_rows(t: Tensor, heads: int, B: int) -> Tensor:
    """Map (heads * rows, .., n) to (B, .., heads * n)."""
    return t.unflatten(0, (heads, -1))[:, :B].movedim(0, -2).flatten(-2)
