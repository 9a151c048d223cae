"""The CPU engine: the C++ library of csrc/, called through ctypes."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics

LIB = Path(__file__).parents[2] / "lib"
CELLS = ("rnn", "gru", "lstm", "attn_rnn", "ln_gru", "ln_lstm")  # as csrc/engine.cpp lists them
ISAS = ("avx512", "avx2", "default")  # the builds of csrc/engine_build.py, fastest first
TYPES = {torch.float32: 0, torch.float64: 1}

_one, _two, _eight = ctypes.c_void_p, ctypes.c_void_p * 2, ctypes.c_void_p * 8


class Args(ctypes.Structure):
    """Args of csrc/args.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "columns", "heads", "parts", "kind", "slots")),
        *(("lengths", _one), ("reset", _one), ("x", _one), ("s0", _two)),
        *(("start", _two), ("mask", _one), ("keep", _two), ("w", _eight)),
        *(("y", _one), ("c", _one), ("s1", _two), ("saved", _one)),
        *(("dy", _one), ("ds1", _two)),
        *(("dx", _one), ("ds0", _two), ("dstart", _two), ("dw", _eight)),
        *((name, ctypes.c_int64) for name in ("time_first", "backwards", "inputs", "width")),
        *(("input", _one), ("input_w", _two), ("dinput", _one), ("dinput_w", _two)),
    ]


@cache
def load_library() -> ctypes.CDLL | str:
    """Load the engine for this machine's instruction set, or return why it cannot be used."""
    problem = ""
    for file in list_libraries():
        try:
            engine = ctypes.CDLL(str(file))
        except OSError as error:
            problem = problem or f"{file.name} cannot be loaded ({error}); install seqloom again on this machine"
            continue
        for function in (engine.seqloom_args_size, engine.seqloom_record):
            function.restype = ctypes.c_int64
        if engine.seqloom_args_size() != ctypes.sizeof(Args):
            return f"{file.name} belongs to another version of seqloom; install it again"
        return engine
    return problem or _why_not_built()


def list_libraries() -> list[Path]:
    """List the engine's libraries that this processor can run, the fastest first."""
    best = torch.backends.cpu.get_cpu_capability().lower()
    first = ISAS.index(best) if best in ISAS else ISAS.index("default")
    files = [LIB / f"engine_{isa}{suffix}" for isa in ISAS[first:] for suffix in (".so", ".dll")]
    return [file for file in files if file.exists()]


def _why_not_built() -> str:
    """Read from build.json, which csrc/engine_build.py writes, why there is no library."""
    report = LIB / "build.json"
    if not report.exists():
        return "seqloom was installed without its CPU engine"
    failed = json.loads(report.read_text())["failed"]
    return next(iter(failed.values()), "the CPU engine was built for another kind of machine")


def why_not_cpu(cell: Cell, job: ScanJob, takes_dt: bool = False) -> str | None:
    """Return why the engine cannot run a job, for any cell; None if it can.

    The engine reads memory by address, so every size must be checked here.

    Args:
        cell: The cell.
        job: The job.
        takes_dt: Whether time spans are supported.
    """
    if job.x.device.type != "cpu":
        return f"the CPU engine does not run on {job.x.device.type}"
    if job.x.dtype not in TYPES:
        return f"the CPU engine supports float32 and float64, not {job.x.dtype}"
    if torch.is_autocast_enabled("cpu"):
        return "the CPU engine does not run under autocast"
    if job.dt is not None and not takes_dt:
        return "the CPU engine has no timespans"
    tensors = (*job.state, *cell.own_parameters().values())
    if any(t.dtype != job.x.dtype or t.device != job.x.device for t in tensors):
        return "input, state and weights differ in type or device"
    if not _has_expected_sizes(cell, job):
        return "the sizes of input, state, lengths or masks do not fit the cell"
    if any(t is not None and t.requires_grad for t in (job.mask, *job.keep)):
        return "the CPU engine computes no gradients of dropout masks"
    engine = load_library()
    return engine if isinstance(engine, str) else None


def _has_expected_sizes(cell: Cell, job: ScanJob) -> bool:
    B, T, D = job.x.shape
    shapes = [s.shape for s in cell.initial_state(job.x)]
    expected: list[tuple[Tensor | None, Sequence[int]]] = [
        (job.lengths, (B,)),
        (job.reset, (B, T)),
        (job.dt, (B, T)),
        (job.mask, (B, cell.output_size)),
        *((k, (B, T, *shape[1:])) for k, shape in zip(job.keep, shapes, strict=False)),
    ]
    return (
        [s.shape for s in job.state] == shapes
        and cell.input_size == D
        and len(job.keep) in (0, len(shapes))
        and all(t is None or (t.shape == torch.Size(shape) and t.device.type == "cpu") for t, shape in expected)
    )


class ThreadSplit(NamedTuple):
    """How threads share a call: their number, and whether they split columns of products or rows of the batch."""

    threads: int
    columns: bool


def split_threads(batch: int, hidden: int, slots: int = 1) -> ThreadSplit:
    """Decide how threads share a call.

    They split the columns if there are too few rows, or if each would read large weights for only a few rows.

    Args:
        batch: Number of rows, including slots.
        hidden: Hidden size.
        slots: Number of consecutive rows that one thread must process.
    """
    most = torch.get_num_threads()
    rows = min(most, batch // max(heuristics.ROWS_PER_THREAD, slots))
    columns = min(most, hidden // heuristics.COLUMNS_PER_THREAD)
    slow = hidden >= heuristics.COLUMNS_HIDDEN and batch <= heuristics.COLUMNS_ROWS * columns
    if columns > 1 and (rows < 2 or (slow and rows <= columns)):
        return ThreadSplit(columns, True)
    return ThreadSplit(max(1, rows), False)


def record_size(cell: str, dtype: torch.dtype, args: Args) -> int:
    """Return how many values the engine saves per step and row for the backward pass."""
    engine = load_library()
    assert isinstance(engine, ctypes.CDLL)
    return int(engine.seqloom_record(CELLS.index(cell), TYPES[dtype], ctypes.byref(args)))
