"""GRU and LSTM, with and without layer normalisation, on NVIDIA GPUs, as kernels of the registry.

A block, or a cluster of blocks, takes some rows of the batch through all of time (`<cell>_cuda`); above 448 units
groups of blocks anywhere on the GPU do (`<cell>_grid`). They hold the weights in registers and shared memory; what does
not fit comes from the cache in every step. The state is carried in float32. The forward saves the states alone, and the
means and deviations of layer normalisation. No host synchronisation; deterministic (no atomics).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights
from seqloom.kernels import loop, tuning
from seqloom.kernels.cuda.gated.backward import go_back
from seqloom.kernels.cuda.gated.code import TYPES, GatedSetting, Kind, arrange_weights, find_code
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.fused import why_not_fused

KINDS = {
    "gru": Kind("gru", gates=3, states=1),
    "lstm": Kind("lstm", gates=4, states=2),
    "ln_gru": Kind("gru", gates=3, states=1, norm=True),
    "ln_lstm": Kind("lstm", gates=4, states=2, norm=True, memory=True),
}
WEIGHTS = ("weight", "bias", "scale", "scale_c", "bias_c")  # of the kernels' arguments
CELL_WEIGHTS = ("weight_hh", "bias_hh", "scale_hh", "scale_c", "bias_c")  # of the cells, which may lack some


@dataclass
class Gated:
    """Run one kind of gated cell, on clusters or on groups of blocks (`grid`)."""

    kind: Kind
    grid: bool = False

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        dtype, H, multiple = autocast_dtype("cuda") or job.x.dtype, cell.hidden_size, tuning.HIDDEN_MULTIPLE
        if cell.name == "gru" and not cell.reset_after:
            return "it applies the reset gate after the product (reset_after=True)"
        if cell.name == "lstm" and cell.proj_size:
            return "it has no projected LSTM (proj_size)"
        if not job.x.is_cuda:
            return "it is for CUDA tensors"
        if dtype not in TYPES:
            return f"it computes in bfloat16 or float16, not {str(dtype).removeprefix('torch.')}"
        if H % multiple or H > tuning.GATED_LARGEST_HIDDEN:
            return f"it takes hidden sizes {multiple}, {2 * multiple}, .. {tuning.GATED_LARGEST_HIDDEN}, not {H}"
        if any(t is not None and t.requires_grad for t in (job.mask, *job.keep)):
            return "it gives dropout masks no gradient"
        if job.x.shape[0] == 0 or job.x.shape[1] == 0:
            return "the batch is empty"
        reason = why_not_fused() or launch.why_not(job.x.device)
        if reason is not None:
            return reason
        setting, device = self._read_setting(cell, job, dtype), job.x.device
        codes = (find_code(setting, name, len(job.x), device) for name in ("forward", "reverse"))
        return next((reason for code in codes if (reason := code.why_not(device)) is not None), None)

    def why_not_auto(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why another kernel is faster for this job; None if none is."""
        dtype, H = autocast_dtype("cuda") or job.x.dtype, cell.hidden_size
        fast, (wide, many) = tuning.CUDNN_FLOAT16_HIDDEN, (tuning.CUDNN_LARGE_HIDDEN, tuning.CUDNN_LARGE_ROWS)
        if job.is_plain and not (self.kind.norm or self.kind.memory):  # all that torch's own takes
            if fast >= H and dtype == torch.float16:
                return f"torch's own (cuDNN) is fast in float16 up to {fast} units"
            if wide < H and len(job.x) > many:
                return f"torch's own is faster above {wide} units and {many} rows"
        narrow = tuning.GATED_CLUSTER_HIDDEN
        if self.grid:
            return f"{cell.name}_cuda is faster up to {narrow} units" if narrow >= H else None
        leaves = narrow < H and Gated(self.kind, grid=True).why_not(cell, job) is None
        return f"{cell.name}_grid is faster above {narrow} units" if leaves else None

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences."""
        dtype, w = autocast_dtype(job.x.device.type) or job.x.dtype, cell.own_parameters()
        start = cell.start(job.x) if job.reset is not None else (None,) * self.kind.states
        options = {
            "lengths": None if job.lengths is None else job.lengths.to(torch.int64).contiguous(),
            "reset": None if job.reset is None else job.reset.contiguous(),
            "mask": None if job.mask is None else job.mask.to(dtype).contiguous(),
            **{f"keep_{i}": k.to(dtype).contiguous() for i, k in enumerate(job.keep)},
        }
        own = (cell.project(job.x), *(w.get(name) for name in CELL_WEIGHTS))
        typed = (None if t is None else t.to(dtype).contiguous() for t in own)
        carried = (None if t is None else t.float().contiguous() for t in (*job.state, *start))
        y, *last = _GatedScan.apply(_GatedInputs(cell, self._read_setting(cell, job, dtype), options), *typed, *carried)
        return y, tuple(s.to(t.dtype) for s, t in zip(last, job.state, strict=True))

    def _read_setting(self, cell: Cell, job: ScanJob, dtype: torch.dtype) -> GatedSetting:
        flags = job.mask is not None, bool(job.keep), job.reset is not None
        return GatedSetting(self.kind, cell.hidden_size, dtype, *flags, self.grid)


@dataclass(frozen=True, eq=False)
class _GatedInputs:
    """The inputs of a scan that have no gradient."""

    cell: Cell
    setting: GatedSetting
    options: dict[str, Tensor | None]


class _GatedScan(torch.autograd.Function):
    """Map x, weights, states and starts to outputs and last states."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        inputs: _GatedInputs,
        x: Tensor,
        *tensors: Any,  # noqa: ANN401  # Tensor; None for a weight that the cell lacks
    ) -> tuple[Tensor, ...]:
        kind, H = inputs.setting.kind, inputs.setting.hidden
        own, first, start = _divide(tensors, kind.states)
        (B, T), train = x.shape[:2], any(ctx.needs_input_grad)
        y = (x.new_empty if inputs.options["lengths"] is None else x.new_zeros)(B, T, H)
        c = torch.empty_like(y) if train and kind.states > 1 else None
        norms = kind.gates * kind.norm + kind.memory
        spread = x.new_empty(B, T, norms, 2, dtype=torch.float32) if train and norms else None
        last = [torch.empty_like(s) for s in first]
        known = _name(own, first, start) | inputs.options | {"x": x, "y": y, "c": c, "spread": spread, "B": B, "T": T}
        known |= {f"last_{i}": s for i, s in enumerate(last)} | {
            "weight": arrange_weights(inputs.setting, own[0].view(kind.gates, H, H))
        }
        code = find_code(inputs.setting, "forward", B, x.device)
        code.start(code.pack(known), B, x.device)
        ctx.inputs = inputs
        ctx.save_for_backward(x, y, c, spread, *tensors)
        return y, *last

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        dy: Tensor,
        *dlast: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, y, c, spread, *tensors = read_saved(ctx)
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, *_differentiate(ctx.inputs, (x, *tensors), (dy, *dlast))
        known = (
            _name(*_divide(tensors, ctx.inputs.setting.kind.states))
            | ctx.inputs.options
            | {"x": x, "y": y, "c": c, "spread": spread}
        )
        known |= {"dy": dy.to(x.dtype).contiguous()}
        return None, *go_back(ctx.inputs.setting, known, dlast)


def _divide(tensors: Sequence[Any], states: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return the weights, the first states, and the states at which a reset starts."""
    k = len(WEIGHTS)
    return tensors[:k], tensors[k : k + states], tensors[k + states :]


def _name(own: Sequence[Any], first: Sequence[Any], start: Sequence[Any]) -> dict[str, Any]:
    """Return these by the names of the kernels' arguments."""
    states = {f"{name}_{i}": s for name, part in (("first", first), ("start", start)) for i, s in enumerate(part)}
    return dict(zip(WEIGHTS, own, strict=True)) | states


def _differentiate(
    inputs: _GatedInputs, tensors: Sequence[Tensor | None], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Compute the gradients by the loop, so that they have gradients themselves."""
    x, options = tensors[0], inputs.options
    own, first, start = _divide(tensors[1:], inputs.setting.kind.states)
    assert x is not None
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        view = bind_weights(inputs.cell, {n: w for n, w in zip(CELL_WEIGHTS, own, strict=True) if w is not None})
        view.project = lambda x: x  # type: ignore[method-assign]  # it is projected already
        view.start = lambda x: tuple(s.to(x.dtype) for s in start)  # type: ignore[method-assign]
        keep = tuple(t for name, t in options.items() if name.startswith("keep") and t is not None)
        state = tuple(s.to(x.dtype) for s in first)
        job = ScanJob(x, state, options["lengths"], options["reset"], None, options["mask"], keep)
        y, last = loop.run(view, job)
        wanted = [t for t in tensors if t is not None and t.requires_grad]
        ends = [y, *(s.float() for s in last)]
        gradients = iter(torch.autograd.grad(ends, wanted, grads, create_graph=True, allow_unused=True))
    return [next(gradients) if t is not None and t.requires_grad else None for t in tensors]
