"""What the three kernels over torch's own fused recurrences share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.backends.cudnn import rnn

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels import any_loop
from seqloom.precision import autocast_dtype
from seqloom.weights import bound

Fused = Callable[[Tensor, State, list[Tensor]], tuple[Tensor, State]]


def why_not_aten(cell: Cell, job: Job) -> str | None:
    """What none of torch's fused recurrences does."""
    if job.mask is not None:
        return "torch's fused kernels have no recurrent dropout"
    if job.keep:
        return "torch's fused kernels have no zoneout"
    if job.reset is not None:
        return "torch's fused kernels cannot reset inside a sequence"
    if job.x.shape[0] == 0:
        return "the batch is empty"
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "torch's fused kernels know no vmap and no forward-mode derivative"
    if job.x.device.type == "meta":
        return "there is nothing to run on the meta device"
    if torch.compiler.is_exporting():
        return "torch's fused kernels freeze the length when exported"
    return None


def names(cell: Cell) -> list[str]:
    """The cell's parameters in the order that torch's functions take them."""
    order = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    return [n for n in order if getattr(cell, n, None) is not None]


def together(cell: Cell, mode: str, weights: list[Tensor]) -> list[Tensor]:
    """On a GPU: copies of the weights in one piece of memory, without which cuDNN complains, and copies too."""
    if not (weights[0].is_cuda and torch.backends.cudnn.enabled):
        return weights
    proj, code = getattr(cell, "proj_size", 0), rnn.get_cudnn_mode(mode)
    copies = [w.clone() for w in weights]
    torch._cudnn_rnn_flatten_weight(copies, len(copies), cell.input_size, code, cell.hidden_size, proj, 1, True, False)
    return copies


def run_fused(cell: Cell, job: Job, mode: str, fused: Fused) -> tuple[Tensor, State]:
    """Run `fused` with torch's gradients, and with the reference's where those are derived again."""
    used = names(cell)

    def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same values, cut off from their history, the weights as cuDNN wants them."""
        k = 1 + len(job.state)
        weights = together(cell, mode, [t.detach() for t in tensors[k:]])
        return [*(t.detach() for t in tensors[:k]), *weights]

    def fast(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        y, state = fused(x, rest[: len(job.state)], list(rest[len(job.state) :]))
        return y, *state

    def slow(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        view = bound(cell, dict(zip(used, rest[len(job.state) :], strict=True)))
        y, state = any_loop.run(view, Job(x, rest[: len(job.state)], job.lengths))
        return y, *state

    inputs = [job.x, *job.state, *(getattr(cell, n) for n in used)]
    carried = [s.dtype for s in job.state]
    amp = autocast_dtype(job.x.device.type)
    if amp is not None:
        inputs = [t.to(amp) for t in inputs]
    with torch.autocast(job.x.device.type, enabled=False) if amp else nullcontext():
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            y, *state = _Twice.apply(leaves, fast, slow, *inputs)
        else:
            y, *state = fast(*leaves(inputs))
    return y, tuple(s.to(d) for s, d in zip(state, carried, strict=True))


class _Twice(torch.autograd.Function):
    """First derivative by the fused kernel's backward; further ones through the reference."""

    @staticmethod
    def forward(ctx: Any, leaves: Any, fast: Any, slow: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = leaves(tensors)
        with torch.enable_grad():
            for leaf, t in zip(inputs, tensors, strict=True):
                leaf.requires_grad_(t.requires_grad)
            outputs = fast(*inputs)
        ctx.slow, ctx.inner = slow, (inputs, outputs)
        ctx.save_for_backward(*tensors)
        return tuple(o.detach() for o in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()
        inputs, outputs = ctx.inner
        if again:
            inputs = ctx.saved_tensors
            outputs = ctx.slow(*inputs)
        wanted = [t for t in inputs if t.requires_grad]
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
        ends, pulls = [o for o, _ in pairs], [g for _, g in pairs]
        found = iter(torch.autograd.grad(ends, wanted, pulls, True, again, allow_unused=True))
        return None, None, None, *(next(found) if t.requires_grad else None for t in inputs)


def at_lengths(y: Tensor, h: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Outputs with zeros past each length, and the last real one (h where there is none)."""
    if lengths is None:
        return y, y[:, -1]
    valid = torch.arange(y.shape[1], device=y.device) < lengths.unsqueeze(1)
    index = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, y.shape[2])
    last = torch.where((lengths > 0).unsqueeze(1), y.gather(1, index).squeeze(1), h)
    return torch.where(valid.unsqueeze(-1), y, torch.zeros_like(y)), last
