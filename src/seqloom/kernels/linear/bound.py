"""One step of a linear recurrence by a single call of the engine, which also checks the arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels.cpu.bound_step import load_interface
from seqloom.kernels.cpu.engine import load_library
from seqloom.kernels.fused import is_traced

BoundLinear = Callable[..., tuple[Tensor, Tensor] | None]


class _BoundLinear(ctypes.Structure):
    """BoundLinear of csrc/bound_linear.hpp."""

    _fields_ = [("interface", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("single", "wide", "layout"))]


@cache
def load_step() -> BoundLinear | None:
    """Return the engine's function; None if this engine, Python or torch does not support it."""
    interface, engine = load_interface(), load_library()
    if isinstance(interface, str) or isinstance(engine, str):
        return None
    if not hasattr(engine, "seqloom_bound_linear_size"):
        return None
    engine.seqloom_bound_linear_size.restype = ctypes.c_int64
    if engine.seqloom_bound_linear_size() != ctypes.sizeof(_BoundLinear):
        return None
    _, table, native = interface
    bind: Any = ctypes.PyDLL(engine._name).seqloom_bind_linear
    bind.restype, bind.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object]
    numbers = native.aoti_torch_dtype_float32(), native.aoti_torch_dtype_float64(), native.aoti_torch_layout_strided()
    bound = _BoundLinear(ctypes.addressof(table), *numbers)
    step: BoundLinear = bind(ctypes.addressof(table), (ctypes.addressof(bound), bound, table))
    return step


def run_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    erase: Tensor | None,
    beta: Tensor | None,
    state: Tensor,
    writes: int = 1,
) -> tuple[Tensor, Tensor] | None:
    """Return the output (B, 1, H, V) and the next state of a short recurrence, or None if `run_linear` has to run it.

    It runs small states on the CPU without gradients, and checks everything that `make_job` checks.

    Args:
        q: (B, 1, H, K).
        k: (B, writes, H, K).
        v: (B, writes, H, V).
        decay: Logarithms, (B, writes, H), or with a last dimension of 1 or K; or None.
        erase: (B, writes, H, K), or None.
        beta: (B, writes, H), for the delta rule; or None.
        state: (B, H, K, V).
        writes: Writes for each output.
    """
    step = load_step()
    if step is None or not state.is_cpu or torch.compiler.is_compiling() or is_traced():
        return None
    result = step(q, k, v, decay, erase, beta, state, writes)
    if result is not None or torch.is_grad_enabled():
        return result
    parts = (None if t is None else t.contiguous() for t in (q, k, v, decay, erase, beta, state))
    return step(*parts, writes)
