"""flash-linear-attention's Triton kernels, where that package is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.kernels.fused import why_not_fused
from seqloom.kernels.linear.job import LinearJob

MOST_CHANNELS = 256  # channels of a key: the kernels' limit
TILE = 16  # rows and columns of the smallest matrix product of a GPU
HALVES = (torch.bfloat16, torch.float16)
# The logarithm of the decay at a reset, which these kernels cannot take as minus infinity: they subtract sums of
# decays. e^-40 is 4e-18; sums over a chunk of 64 resets still have 11 bits behind the point.
RESET_DECAY = -40.0


@cache
def _load() -> dict[str, Callable[..., Any]] | str:
    """Return the package's functions by the form that they compute, or why they cannot be used."""
    try:
        with warnings.catch_warnings():
            # Warnings about optional packages, which some test runners turn into errors.
            warnings.simplefilter("ignore")
            from fla.ops.delta_rule import chunk_delta_rule
            from fla.ops.gated_delta_rule import chunk_gated_delta_rule
            from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule
            from fla.ops.gla import chunk_gla
            from fla.ops.kda import chunk_kda
            from fla.ops.simple_gla import chunk_simple_gla
    except Exception as error:  # an incompatible Triton raises errors of many kinds
        return f"flash-linear-attention cannot be imported ({type(error).__name__}: {error})"
    return {
        "delta": chunk_delta_rule,
        "gated_delta": chunk_gated_delta_rule,
        "channel_delta": chunk_kda,
        "erase": chunk_dplr_delta_rule,
        "channel": chunk_gla,
        "scalar": chunk_simple_gla,
    }


@cache
def _lacks_scalar_backward() -> bool:
    """Return whether the package refuses the backward pass with one decay per head; one per channel works.

    Triton 3.4 to 3.7.0 miscompiles one of its kernels for Hopper GPUs (flash-linear-attention, issue 640).
    """
    import triton

    version = tuple(int(part) for part in triton.__version__.split("+")[0].split(".")[:3])
    return torch.cuda.get_device_capability()[0] == 9 and (3, 4) <= version < (3, 7, 1)


def why_not(job: LinearJob) -> str | None:
    """Return why this job cannot run here; None if it can."""
    if job.v.device.type != "cuda":
        return f"flash-linear-attention runs on GPUs, the input is on {job.v.device.type}"
    if job.v.dtype not in HALVES:
        return f"flash-linear-attention's products are in bfloat16 or float16, the input is {job.v.dtype}"
    if job.writes > 1 or (job.erase is not None and (job.decay is None or job.decay.shape[-1] == 1)):
        return "flash-linear-attention has no such recurrence"
    if job.q.shape[-1] > MOST_CHANNELS:
        return f"it takes up to {MOST_CHANNELS} channels of a key, got {job.q.shape[-1]}"
    if job.q.shape[1] == 1:
        return "a single step has no chunks"
    loaded = _load()
    return loaded if isinstance(loaded, str) else why_not_fused()


def why_not_auto(job: LinearJob) -> str | None:
    """Return why `kernel="auto"` should choose another kernel; None if it should choose this one."""
    if job.erase is not None and job.beta is None:
        return (
            "its kernel for this recurrence has not been compared with the definition on a GPU; kernel='fla' takes it"
        )
    if job.q.shape[-1] % TILE or job.v.shape[-1] % TILE:
        return f"keys and values are not multiples of {TILE}, its tiles; kernel='fla' takes it"
    if torch.compiler.is_compiling():
        return "it would break the compiled graph"
    return None


class _FirstDerivative(torch.autograd.Function):
    """Pass tensors through, and refuse second derivatives, which would silently leave these kernels out."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401, ARG004
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401, ARG004
        if torch.is_grad_enabled():  # with create_graph=True
            raise UserError("flash-linear-attention has no second derivative; use kernel='chunk'")
        return gradients


def run(job: LinearJob) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, T, H, V) and the last state (B, H, K, V)."""
    loaded = _load()
    assert not isinstance(loaded, str)
    q, k, v = (t.to(job.v.dtype) for t in (job.q, job.k, job.v))
    if job.needs_gradient:
        q, k, v = _FirstDerivative.apply(q, k, v)
    settings: dict[str, Any] = {"scale": 1.0, "initial_state": job.state, "output_final_state": True}
    decay = None if job.decay is None else job.decay.float()
    if decay is not None and job.has_reset:
        decay = decay.clamp(min=RESET_DECAY)
    if decay is not None and decay.shape[-1] == 1 and job.needs_gradient and _lacks_scalar_backward():
        decay = decay.expand(-1, -1, -1, q.shape[-1]).contiguous()
    if job.beta is not None:
        beta = job.beta.squeeze(-1).to(v.dtype)
        if decay is None:
            return loaded["delta"](q, k, v, beta, **settings)
        if decay.shape[-1] > 1:
            return loaded["channel_delta"](q, k, v, decay, beta, **settings)
        return loaded["gated_delta"](q, k, v, decay.squeeze(-1), beta, **settings)
    if job.erase is not None:
        return loaded["erase"](q, k, v, -job.erase.to(v.dtype), k, decay, **settings)
    if decay is not None and decay.shape[-1] > 1:
        return loaded["channel"](q, k, v, decay, **settings)
    return loaded["scalar"](q, k, v, None if decay is None else decay.squeeze(-1), **settings)
