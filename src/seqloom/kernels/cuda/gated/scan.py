"""A gated cell over a sequence: outputs and last states, with gradients, by the two kernels of `code.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_saved
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty_like, new_empty
from seqloom.kernels import loop
from seqloom.kernels.cuda.gated.backward import go_back
from seqloom.kernels.cuda.gated.centre import centre_weights
from seqloom.kernels.cuda.gated.code import GatedSetting, arrange_weights, choose_kept, find_code
from seqloom.kernels.fused import differentiate

WEIGHTS = ("weight", "bias", "scale", "scale_c", "bias_c", "vectors")  # of the kernels' arguments


@dataclass(frozen=True, eq=False)
class GatedInputs:
    """The inputs of a scan that have no gradient.

    Attributes:
        setting: The cell and the options of the job.
        bind: Returns a cell with these weights, by the kernels' names, whose step takes the kernels' x and states; the
            loop runs it for second derivatives.
        lengths: (B,) int64, contiguous; None if all steps are real.
        reset: (B, T).
        mask: (B, H) in the type of the weights.
        keep: (B, T, H) for each state.
        heads: Number of heads, each with its own weights and as many rows: B / heads, a multiple of 16.
    """

    setting: GatedSetting
    bind: Callable[[Mapping[str, Tensor]], Cell]
    lengths: Tensor | None
    reset: Tensor | None
    mask: Tensor | None
    keep: tuple[Tensor, ...]
    heads: int = 1

    @classmethod
    def of(
        cls, setting: GatedSetting, bind: Callable[[Mapping[str, Tensor]], Cell], job: ScanJob, heads: int = 1
    ) -> GatedInputs:
        """Read them from a job."""
        dtype = setting.dtype
        return cls(
            setting,
            bind,
            None if job.lengths is None else job.lengths.to(torch.int64).contiguous(),
            None if job.reset is None else job.reset.contiguous(),
            None if job.mask is None else job.mask.to(dtype).contiguous(),
            tuple(k.to(dtype).contiguous() for k in job.keep),
            heads,
        )

    def name(self) -> dict[str, Tensor | None]:
        """Return them by the names of the kernels' arguments."""
        keep = {f"keep_{i}": k for i, k in enumerate(self.keep)}
        return {"lengths": self.lengths, "reset": self.reset, "mask": self.mask, **keep}

    def count_head_rows(self, B: int) -> int:
        """Return the rows of a head as the kernels take them: 0 if all rows have the same weights."""
        return B // self.heads if self.heads > 1 else 0


def run_scan(
    inputs: GatedInputs, x: Tensor, own: Mapping[str, Tensor | None], state: State, start: State
) -> tuple[Tensor, State]:
    """Run a gated cell.

    Args:
        inputs: The setting, and what has no gradient.
        x: (B, T, planes * H).
        own: The weights by the kernels' names, of all heads one after the other; those that the cell lacks may be
            missing.
        state: The states before the first step, (B, H) each.
        start: The states after a reset; empty without resets.

    Returns:
        The outputs (B, T, H), and the last states in float32.
    """
    dtype = inputs.setting.dtype
    typed = (None if t is None else t.to(dtype).contiguous() for t in (x, *(own.get(name) for name in WEIGHTS)))
    carried = (t.float().contiguous() for t in (*state, *start))
    y, *last = _GatedScan.apply(inputs, *typed, *carried)
    return y, tuple(last)


class _GatedScan(torch.autograd.Function):
    """Map x, weights, states and starts to outputs and last states."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        inputs: GatedInputs,
        x: Tensor,
        *tensors: Any,  # noqa: ANN401  # Tensor; None for a weight that the cell lacks
    ) -> tuple[Tensor, ...]:
        kind, H = inputs.setting.kind, inputs.setting.hidden
        own, first, start = _divide(tensors, kind.states)
        (B, T), train = x.shape[:2], any(ctx.needs_input_grad)
        # padding is read from the path of state 0, by products, and from the outputs
        whole = (0, kind.output) if inputs.lengths is not None else ()
        paths = [
            (Tensor.new_zeros if i in whole else new_empty)(x, B, T, H) if train or i in (0, kind.output) else None
            for i in range(kind.states)
        ]
        spread = new_empty(x, B, T, kind.spread, dtype=torch.float32) if train and kind.spread else None
        last = [empty_like(s) for s in first]
        known = _name(own, first, start, paths) | inputs.name() | {"x": x, "spread": spread, "B": B, "T": T}
        known |= {f"last_{i}": s for i, s in enumerate(last)}
        centred, u, setting = None, None, inputs.setting
        if kind.norm:
            centred, setting = centre_weights(own[0], H), choose_kept(setting, B, x.device)
            u = new_empty(x, B, T, kind.gates * H) if train and setting.kept else None
            known |= {"u": u, "keeps": int(u is not None)}
        weight = own[0].view(-1, H, H) if centred is None else centred
        known |= {"weight": arrange_weights(inputs.setting, weight)}
        known |= {"head_rows": inputs.count_head_rows(B)}
        code = find_code(inputs.setting, "forward", B, x.device)
        code.start(code.pack(known), B, x.device)
        ctx.inputs, ctx.setting = inputs, setting
        ctx.save_for_backward(x, spread, centred, u, *paths, *tensors)
        y = paths[kind.output]
        assert y is not None
        return y, *last

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        dy: Tensor,
        *dlast: Tensor,
    ) -> tuple[Tensor | None, ...]:
        inputs: GatedInputs = ctx.inputs
        k = inputs.setting.kind.states
        x, spread, centred, u, *saved = read_saved(ctx)
        paths, tensors = saved[:k], saved[k:]
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, *_differentiate(inputs, (x, *tensors), (dy, *dlast))
        known = _name(*_divide(tensors, k), paths) | inputs.name() | {"x": x, "spread": spread}
        known |= {"dy": dy.to(x.dtype).contiguous(), "centred": centred, "u": u}
        return None, *go_back(ctx.setting, known, dlast, inputs.heads)


def _divide(tensors: Sequence[Any], states: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return the weights, the first states, and the states at which a reset starts."""
    k = len(WEIGHTS)
    return tensors[:k], tensors[k : k + states], tensors[k + states :]


def _name(
    own: Sequence[Any], first: Sequence[Any], start: Sequence[Any], paths: Sequence[Tensor | None]
) -> dict[str, Any]:
    """Return these by the names of the kernels' arguments; paths are the states after all steps."""
    states = {f"{name}_{i}": s for name, part in (("first", first), ("start", start)) for i, s in enumerate(part)}
    states |= {"y": paths[0]} | {f"c_{i}": s for i, s in enumerate(paths[1:])}
    return dict(zip(WEIGHTS, own, strict=True)) | states


def _differentiate(
    inputs: GatedInputs, tensors: Sequence[Tensor | None], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Compute the gradients by the loop, so that they have gradients themselves."""
    x = tensors[0]
    own, first, start = _divide(tensors[1:], inputs.setting.kind.states)
    assert x is not None
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        view = inputs.bind({n: w for n, w in zip(WEIGHTS, own, strict=True) if w is not None})
        view.project = lambda x: x  # type: ignore[method-assign]  # it is projected already
        view.start = lambda x: tuple(s.to(x.dtype) for s in start)  # type: ignore[method-assign]
        state = tuple(s.to(x.dtype) for s in first)
        job = ScanJob(x, state, inputs.lengths, inputs.reset, None, inputs.mask, inputs.keep)
        y, last = loop.run(view, job)
        return differentiate(tensors, [y, *(s.float() for s in last)], grads, True, True)
