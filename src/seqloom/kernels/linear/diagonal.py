"""A recurrence with a diagonal transition, h' = a * h + b, real or complex, as an associative scan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.core.checks import read_saved
from seqloom.core.masks import make_mask
from seqloom.kernels.fused import why_not_fused
from seqloom.kernels.linear import engine
from seqloom.kernels.linear.choice import LinearChoice, note
from seqloom.kernels.parallel.linear import linear_scan
from seqloom.kernels.scan import scan_steps


def scan_diagonal(
    a: Tensor, b: Tensor, h: Tensor, *, lengths: Tensor | None = None, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return h after every step, (B, T, N), and after the last, (B, N).

    Args:
        a: (B, T, N), real or complex.
        b: (B, T, N), of the type of a.
        h: (B, N), the state before the first step.
        lengths: (B,), the real steps of each row; the state does not change after them.
        reset: (B, T), True where the state is set to 0 before the step.
    """
    if reset is not None:
        a = a.masked_fill(reset.unsqueeze(-1), 0)
    if lengths is not None:
        past = ~make_mask(lengths, a.shape[1]).unsqueeze(-1)
        a, b = a.masked_fill(past, 1), b.masked_fill(past, 0)
    a, b, h = (t.to(torch.promote_types(b.dtype, h.dtype)) for t in (a, b, h))
    choice = _choose(a)
    note(choice)
    if choice.name == "step":
        y = (a[:, 0] * h + b[:, 0]).unsqueeze(1)
    elif choice.name == "export":
        return scan_steps(_step, h, [a, b])
    else:
        y = scan_states(a, b, h)
    return y, y[:, -1].clone()


def scan_pairs(
    a: Tensor, b: Tensor, h: Tensor, *, lengths: Tensor | None = None, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Do what `scan_diagonal` does for complex numbers held as pairs, real and imaginary part.

    Args:
        a: (N, 2) or (B, T, N, 2).
        b: (B, T, N, 2).
        h: (B, N, 2).
        lengths: (B,), or None.
        reset: (B, T), or None.

    Returns:
        h after every step (B, T, N, 2), and the last (B, N, 2).
    """
    if not torch.compiler.is_exporting():
        a, b, h = (torch.view_as_complex(t.contiguous()) for t in (a, b, h))
        y, end = scan_diagonal(a.expand(b.shape), b, h, lengths=lengths, reset=reset)
        return torch.view_as_real(y), torch.view_as_real(end)
    note(LinearChoice("export", "torch's scan operator"))
    a = a.expand(b.shape)  # ONNX has no complex numbers
    if reset is not None:
        a = a.masked_fill(reset[:, :, None, None], 0)
    if lengths is not None:
        past = ~make_mask(lengths, b.shape[1])[:, :, None, None]
        a = torch.where(past, torch.tensor([1.0, 0.0], dtype=a.dtype, device=a.device), a)
        b = b.masked_fill(past, 0)
    return scan_steps(_step_complex, h, [a, b])


def scan_states(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Return h after every step; the backward pass is a reverse scan where torch allows a custom one."""
    y: Tensor = linear_scan(a, b, h) if why_not_fused() else _DiagonalScan.apply(a, b, h)
    return y


def _step(h: Tensor, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    a, b = parts
    h = a * h + b
    return h, h


def _step_complex(h: Tensor, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    a, b = parts
    real = a[..., 0] * h[..., 0] - a[..., 1] * h[..., 1] + b[..., 0]
    imaginary = a[..., 0] * h[..., 1] + a[..., 1] * h[..., 0] + b[..., 1]
    h = torch.stack([real, imaginary], -1)
    return h, h


def _choose(a: Tensor) -> LinearChoice:
    if torch.compiler.is_exporting():
        return LinearChoice("export", "torch's scan operator")
    reason = engine.why_not_tensors((a,))
    if reason is None:
        return LinearChoice("cpu", "the C++ engine, step by step")
    rejected = (("cpu", reason),)
    if a.shape[1] == 1:
        return LinearChoice("step", "one step", rejected)
    return LinearChoice("scan", "an associative scan", rejected)


def _forward(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Return h after every step, without a graph."""
    if engine.why_not_tensors((a, b, h)) is None:
        return engine.scan_diagonal(a, b, h)
    return linear_scan(a, b, h)


class _DiagonalScan(torch.autograd.Function):
    """The scan with a backward pass that is a reverse scan; it saves only a and h."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h: Tensor) -> Tensor:  # noqa: ANN401  # takes any attribute
        y = _forward(a, b, h)
        ctx.save_for_backward(a, h, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401  # has what forward set
        a, h, y = read_saved(ctx)
        kept = a.conj().resolve_conj() if a.is_complex() else a
        # The gradient of the state after step t: g_t = dy_t + kept_(t+1) g_(t+1), a reverse scan.
        later = torch.cat([torch.zeros_like(kept[:, :1]), kept[:, 1:].flip(1)], 1)
        g = _DiagonalScan.apply(later, dy.flip(1), torch.zeros_like(h)).flip(1)
        before = torch.cat([h.unsqueeze(1), y[:, :-1]], 1)
        da = g * (before.conj() if a.is_complex() else before)
        return da, g, kept[:, 0] * g[:, 0]
