"""The CPU engine: csrc/ compiled with the package, called by address through ctypes."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.cell import Cell
from seqloom.job import Job

LIB = Path(__file__).parents[1] / "lib"
FUNCTIONS = ("rnn", "gru", "lstm", "attn_rnn")  # forward and backward each, as csrc/engine.cpp lists them
TYPES = {torch.float32: 0, torch.float64: 1}
ROWS_A_THREAD = 4  # fewer are not worth starting a thread for

_plain = ("lengths", "x", "h0", "c0")
_last = ("y", "c", "h1", "c1", "dy", "dh1", "dc1", "dx", "dh0", "dc0")


class Args(ctypes.Structure):
    """csrc/args.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "heads", "parts", "norm")),
        *((name, ctypes.c_void_p) for name in _plain),
        ("w", ctypes.c_void_p * 4),
        ("b", ctypes.c_void_p * 4),
        *((name, ctypes.c_void_p) for name in _last),
        ("d", ctypes.c_void_p * 4),
    ]


@cache
def library() -> ctypes.CDLL | str:
    """The engine for this machine, or why there is none."""
    best = torch.backends.cpu.get_cpu_capability().lower()
    order = ("avx512", "avx2", "default")
    for isa in order[order.index(best) if best in order else len(order) - 1 :]:
        file = LIB / f"engine_{isa}.so"
        if file.exists():
            engine = ctypes.CDLL(str(file))
            engine.seqloom_args_size.restype = ctypes.c_int64
            if engine.seqloom_args_size() != ctypes.sizeof(Args):
                return f"{file.name} belongs to another version of seqloom; install it again"
            return engine
    reason = LIB / "missing.txt"
    return reason.read_text() if reason.exists() else "seqloom was installed without its CPU engine"


def why_not_cpu(cell: Cell, job: Job) -> str | None:
    """What the engine does not do, for any cell. It reads by address, so every size must be what it expects."""
    if job.x.device.type != "cpu":
        return f"the CPU engine does not run on {job.x.device.type}"
    if job.x.dtype not in TYPES:
        return f"the CPU engine knows float32 and float64, not {job.x.dtype}"
    if torch.is_autocast_enabled("cpu"):
        return "the CPU engine does not run under autocast"
    for field, name in (("reset", "reset"), ("mask", "recurrent dropout"), ("keep", "zoneout"), ("dt", "timespans")):
        if getattr(job, field) not in (None, ()):
            return f"the CPU engine has no {name} yet"
    tensors = (*job.state, *cell.own().values())
    if any(t.dtype != job.x.dtype or t.device != job.x.device for t in tensors):
        return "input, state and weights differ in type or device"
    shapes = [s.shape for s in cell.initial_state(job.x)]
    fit = [s.shape for s in job.state] == shapes and job.x.shape[-1] == cell.input_size
    if not fit or (job.lengths is not None and job.lengths.shape != job.x.shape[:1]):
        return "input, state and lengths do not fit the cell"
    engine = library()
    return engine if isinstance(engine, str) else None


def not_when_large(cell: Cell, job: Job) -> str | None:
    """Of gru and rnn: where torch's own is left the work."""
    return "torch's own is as fast above 512 units" if cell.hidden_size > 512 and job.lengths is None else None


def call(cell: str, backward: bool, dtype: torch.dtype, shape: Sequence[int], **tensors: Any) -> None:
    """One function of the engine; tensors must be contiguous and stay alive until it returns."""
    args = Args(*shape)
    for name, value in tensors.items():
        if isinstance(value, (list, tuple)):
            for i, t in enumerate(value):
                getattr(args, name)[i] = None if t is None else _address(t)
        elif isinstance(value, Tensor):
            setattr(args, name, _address(value))
        elif value is not None:
            setattr(args, name, value)
    engine = library()
    assert isinstance(engine, ctypes.CDLL)
    threads = max(1, min(torch.get_num_threads(), shape[0] // ROWS_A_THREAD))
    number = 2 * FUNCTIONS.index(cell) + backward
    if engine.seqloom_run(number, TYPES[dtype], threads, ctypes.byref(args)):
        raise MemoryError(f"the CPU engine had no memory for {cell} with batch {shape[0]} and hidden size {shape[2]}")


def _address(t: Tensor) -> int:
    if not t.is_contiguous():
        raise ValueError(f"the CPU engine was given a strided tensor of shape {tuple(t.shape)}")
    return t.data_ptr()


def outputs(x: Tensor, lengths: Tensor | None, *shape: int) -> Tensor:
    """Room for results; what lies past a length is not written, so it starts as 0."""
    return x.new_empty(shape) if lengths is None else x.new_zeros(shape)


class _Kept(threading.local):
    def __init__(self) -> None:
        self.room: dict[torch.dtype, Tensor] = {}


_kept = _Kept()
KEPT_BYTES = 2**26  # a larger piece is not kept


def scratch(x: Tensor, lengths: Tensor | None, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Room for what a backward needs and does not return, from one piece of memory that is used again.

    New memory costs a page fault for every 4 kB, a tenth of a backward.
    """
    sizes = [math.prod(shape) for shape in shapes]
    room = _kept.room.get(x.dtype)
    poisoned = (
        torch.are_deterministic_algorithms_enabled()
    )  # new memory then holds NaN, and finds what is left unwritten
    if room is None or len(room) < sum(sizes) or poisoned:
        room = x.new_empty(sum(sizes))
        if room.nbytes <= KEPT_BYTES:
            _kept.room[x.dtype] = room
    parts = [part.view(shape) for part, shape in zip(room[: sum(sizes)].split(sizes), shapes, strict=True)]
    if lengths is not None:
        for part in parts:
            part.zero_()
    return parts


def whole(lengths: Tensor | None) -> Tensor | None:
    """Lengths as the engine reads them."""
    return None if lengths is None else lengths.to(torch.int64).contiguous()
