"""Linear recurrences on the C++ engine (csrc/linear.hpp), without gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from seqloom.core.memory import empty, empty_like
from seqloom.kernels.cpu.engine import TYPES, load_library
from seqloom.kernels.cpu.kept_memory import kept_memory
from seqloom.kernels.fused import is_traced, why_not_fused
from seqloom.kernels.linear.job import LinearJob

COMPLEX = {torch.complex64: torch.float32, torch.complex128: torch.float64}


class LinearArgs(ctypes.Structure):
    """LinearArgs of csrc/linear_args.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "K", "V", "writes", "channels")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "decay", "erase", "beta", "s0", "y", "s1")),
    ]


class DiagonalArgs(ctypes.Structure):
    """DiagonalArgs of csrc/linear_args.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "N", "complex")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "h0", "y")),
    ]


@cache
def _load() -> ctypes.CDLL | str:
    """Return the engine, or why it has no linear recurrences."""
    engine = load_library()
    if isinstance(engine, str):
        return engine
    size = ctypes.sizeof(LinearArgs) + 1000 * ctypes.sizeof(DiagonalArgs)
    if not hasattr(engine, "seqloom_linear_size") or engine.seqloom_linear_size() != size:
        return "the CPU engine belongs to another version of seqloom; install it again"
    return engine


def why_not(job: LinearJob) -> str | None:
    """Return why this job cannot run here; None if it can."""
    if job.needs_gradient:
        return "the CPU engine computes no gradients of linear recurrences"
    return why_not_tensors((job.state,))


def why_not_tensors(tensors: Sequence[Tensor]) -> str | None:
    """Return why the engine cannot read these tensors; None if it can."""
    first = tensors[0]
    if first.device.type != "cpu":
        return f"the CPU engine does not run on {first.device.type}"
    if COMPLEX.get(first.dtype, first.dtype) not in TYPES:
        return f"the CPU engine supports float32 and float64, not {first.dtype}"
    if torch.compiler.is_compiling():
        return "torch.compile cannot look into the CPU engine"
    if is_traced():
        return "torch.jit.trace records torch's operators only"
    if any(type(t) not in (Tensor, torch.nn.Parameter) for t in tensors):
        return f"the CPU engine reads plain tensors, got a {type(first).__name__}"
    loaded = _load()
    return loaded if isinstance(loaded, str) else why_not_fused()


def run(job: LinearJob) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, T, H, V) and the last state (B, H, K, V)."""
    job = job.widen()
    B, T, H, K = job.q.shape
    V, dtype = job.v.shape[-1], job.state.dtype
    y, end = kept_memory.allocate(job.state, B, T, H, V), empty(B, H, K, V, dtype=dtype)
    parts = (job.q, job.k, job.v, job.decay, job.erase, job.beta, job.state)
    read = [t if t is None or t.is_contiguous() else t.contiguous() for t in parts]  # alive during the call
    channels = 0 if job.decay is None else job.decay.shape[-1]
    addresses = [None if t is None else t.data_ptr() for t in read]
    args = LinearArgs(B, T, H, K, V, job.writes, channels, *addresses, y.data_ptr(), end.data_ptr())
    engine = _load()
    assert isinstance(engine, ctypes.CDLL)
    if engine.seqloom_linear(TYPES[dtype], torch.get_num_threads(), ctypes.byref(args)):
        raise MemoryError(f"the CPU engine could not allocate memory for {B} rows of {H} states of {K} x {V}")
    return y, end


def scan_diagonal(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Return h' = a * h + b after every step, (B, T, N), for real or complex numbers."""
    B, T, N = a.shape
    a, b, h = (t.detach().resolve_conj().contiguous() for t in (a, b, h))
    y = empty_like(a)
    is_complex = a.dtype in COMPLEX
    args = DiagonalArgs(B, T, N, int(is_complex), a.data_ptr(), b.data_ptr(), h.data_ptr(), y.data_ptr())
    engine = _load()
    assert isinstance(engine, ctypes.CDLL)
    kind = TYPES[COMPLEX.get(a.dtype, a.dtype)]
    engine.seqloom_diagonal(kind, torch.get_num_threads(), ctypes.byref(args))
    return y
