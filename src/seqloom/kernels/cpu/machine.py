"""Run programs of the cell compiler on the engine's vector machine (csrc/machine.hpp)."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.compiler.ir import Nest, Place, Product, Program
from seqloom.compiler.plan import UnfitError
from seqloom.compiler.validity import check_program
from seqloom.kernels.cpu.engine import TYPES, ThreadSplit, load_library, split_threads
from seqloom.kernels.cpu.nest_code import OPERATORS, encode_nest

# Rows of a buffer: one for all, as many as the batch has, and as many as all steps have, or not.
ROWS = {
    Place.WEIGHT: (1, 0, 0),
    Place.ROW: (0, 1, 0),
    Place.TIME: (0, 0, 1),
    Place.BEFORE: (0, 1, 1),
    Place.AFTER: (0, 1, 1),
}
PLACES = (Place.WEIGHT, Place.ROW, Place.TIME, Place.BEFORE, Place.AFTER)  # as csrc/machine.hpp lists them
OUT_OF_MEMORY, ROWS_DO_NOT_FIT, BUFFERS_DO_NOT_FIT = 1, 2, 3  # what seqloom_machine returns


class MachineArgs(ctypes.Structure):
    """MachineArgs of csrc/machine_args.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "columns", "packed")),
        *((name, ctypes.c_void_p) for name in ("code", "constants", "buffers", "lengths")),
        ("many", ctypes.c_int64),
        ("transposed", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("offset", "count")),
    ]


_pack_args = struct.Struct(f"{len(MachineArgs._fields_)}q").pack  # faster than filling the structure


@dataclass(frozen=True, eq=False)
class Encoded:
    """A program as the machine reads it.

    Attributes:
        program: The program.
        code: (length), int64.
        constants: (length), float64: the constants that the code uses.
        sizes: For each buffer its name, its size and its entry of `ROWS`.
        factors: For weights that only products read, by buffer: their shape, (heads, K, N).
        hidden: The widest left factor of a product, or the longest nest; determines how threads divide the work.
    """

    program: Program
    code: Tensor
    constants: Tensor
    sizes: tuple[tuple[str, int, int, int, int], ...]
    factors: dict[int, tuple[int, int, int]]
    hidden: int


def encode(program: Program) -> Encoded:
    """Translate a program into the machine's code.

    Raises:
        ValueError: If the program is not valid, for example because a part reaches past the end of a buffer.
        UnfitError: If the engine does not accept the code.
    """
    check_program(program)
    constants: list[float] = []
    code = [len(program.buffers)]
    for buffer in program.buffers:
        code += [PLACES.index(buffer.place), buffer.size]
    code += [int(program.reverse), len(program.parts)]
    for part in program.parts:
        if isinstance(part, Product):
            code += [0, part.source, part.offset, part.weight, part.out, part.heads, part.K, part.N, part.rows]
        else:
            code += [1, *encode_nest(part, program, constants)]
    widths = [p.heads * p.K for p in program.parts if isinstance(p, Product)]
    read = {a.buffer for p in program.parts if isinstance(p, Nest) for a in p.reads()}
    lengths = [torch.Size(p.sizes).numel() for p in program.parts if isinstance(p, Nest)]
    numbers, values = torch.tensor(code, dtype=torch.int64), torch.tensor(constants, dtype=torch.float64)
    engine = load_library()
    if isinstance(engine, ctypes.CDLL):  # the engine's check: see csrc/machine_check.hpp
        address = ctypes.c_void_p(numbers.data_ptr())
        if not engine.seqloom_check_machine(address, ctypes.c_int64(len(code)), ctypes.c_int64(len(constants))):
            raise UnfitError("the CPU engine refuses a program: a part reaches outside of its buffers")
    return Encoded(
        program,
        numbers,
        values,
        tuple((b.name, b.size, *ROWS[b.place]) for b in program.buffers),
        {p.weight: (p.heads, p.K, p.N) for p in program.parts if isinstance(p, Product) and p.weight not in read},
        max(widths or lengths or [1]),
    )


@cache
def why_not_machine() -> str | None:
    """Return why the vector machine cannot be used; None if it can."""
    engine = load_library()
    if isinstance(engine, str):
        return engine
    version = ctypes.sizeof(MachineArgs) + 1000 * len(OPERATORS)
    if not hasattr(engine, "seqloom_machine_version") or engine.seqloom_machine_version() != version:
        return "the CPU engine belongs to another version of seqloom; install it again"
    return None


def run_program(
    encoded: Encoded,
    buffers: Sequence[Tensor | None],
    B: int,
    offset: Tensor,
    count: Tensor,
    split: ThreadSplit | None = None,
) -> None:
    """Run a program over all time steps; it writes to the buffers.

    Args:
        encoded: The program.
        buffers: One contiguous CPU tensor, float32 or float64, for each buffer of the program, of any shape. With P
            packed rows in all, a buffer has `size` elements (WEIGHT), B * size (ROW), P * size (TIME) or (B + P) * size
            (BEFORE and AFTER). Two buffers may share their memory. The weight of a product may also be the transpose of
            a contiguous tensor. None for a buffer with values per row (ROW) that only this program needs.
        B: Number of rows of the batch.
        offset: (T), int64: the first packed row of every step.
        count: (T), int64: the number of rows of every step, never more than in the step before.
        split: How threads share the work; chosen by sizes if None.

    Raises:
        ValueError: If a tensor has the wrong size, type, device or layout.
        MemoryError: If the engine cannot allocate memory.
        RuntimeError: If the engine cannot be used; `why_not_machine` tells this beforehand.
    """
    problem = why_not_machine()
    if problem is not None:
        raise RuntimeError(problem)
    (T,) = count.shape
    for name, tensor in (("offset", offset), ("count", count)):
        if tensor.dtype != torch.int64 or tensor.shape != count.shape:
            raise ValueError(f"{name} must be int64 of shape ({T},), got {tensor.dtype} {tuple(tensor.shape)}")
        _check_memory(name, tensor)
    packed = _read_last(offset) + _read_last(count) if T else 0
    _check_buffers(encoded, buffers, B, packed)
    run_trusted(encoded, buffers, Rows(B, T, packed, offset, count), split)


class Rows(NamedTuple):
    """The rows of every step: the arguments of `run_program`, and the number of packed rows."""

    B: int
    T: int
    packed: int
    offsets: Tensor
    counts: Tensor


def run_trusted(
    encoded: Encoded, buffers: Sequence[Tensor | None], rows: Rows, split: ThreadSplit | None = None
) -> None:
    """Run a program as `run_program` does, on buffers of one type that are contiguous, or transposed weights.

    The engine checks their lengths.

    Raises:
        ValueError: If the counts and offsets of rows are inconsistent.
        UnfitError: If a buffer is too short.
        MemoryError: If the engine cannot allocate memory.
    """
    transposed, split = array("B", bytes(len(buffers))), split or split_threads(rows.B, encoded.hidden)
    for i in encoded.factors:
        weight = buffers[i]
        assert weight is not None
        transposed[i] = not weight.is_contiguous()
    engine = load_library()
    assert isinstance(engine, ctypes.CDLL)
    many, address = len(buffers), Tensor.data_ptr
    addresses = array("Q", [0 if b is None else address(b) for b in buffers])
    lengths = array("q", [0 if b is None else b.numel() for b in buffers])
    dtype = next((b.dtype for b in buffers if b is not None), torch.float32)
    args = _pack_args(
        rows.B,
        rows.T,
        int(split.columns),
        rows.packed,
        address(encoded.code),
        address(encoded.constants),
        addresses.buffer_info()[0],
        lengths.buffer_info()[0],
        many,
        transposed.buffer_info()[0],
        address(rows.offsets),
        address(rows.counts),
    )
    result = engine.seqloom_machine(TYPES[dtype], split.threads, args)
    if result == OUT_OF_MEMORY:
        raise MemoryError(f"the CPU engine could not allocate memory for a program with batch {rows.B}")
    if result == ROWS_DO_NOT_FIT:
        raise ValueError(f"offset and count are not the packed rows of a batch of {rows.B} sorted by length")
    if result == BUFFERS_DO_NOT_FIT:
        raise UnfitError(f"a buffer is shorter than a program needs for {rows.B} rows and {rows.packed} steps of rows")


def _read_last(numbers: Tensor) -> int:
    """Read the last element of an int64 tensor by address: indexing a tensor takes microseconds."""
    return ctypes.c_int64.from_address(numbers.data_ptr() + 8 * (numbers.shape[0] - 1)).value


def _check_buffers(encoded: Encoded, buffers: Sequence[Tensor | None], B: int, packed: int) -> None:
    """Check all buffers: the engine reads and writes memory by address."""
    if len(buffers) != len(encoded.sizes):
        raise ValueError(f"the program has {len(encoded.sizes)} buffers, got {len(buffers)}")
    dtype = next((b.dtype for b in buffers if b is not None), torch.float32)
    if dtype not in TYPES:
        raise ValueError(f"the CPU engine supports float32 and float64, not {dtype}")
    for i, (tensor, (name, size, one, batch, steps)) in enumerate(zip(buffers, encoded.sizes, strict=True)):
        if tensor is None:
            if one or steps:
                raise ValueError(f"{name} must be a tensor, got None")
            continue
        rows = one + batch * B + steps * packed
        if tensor.numel() != rows * size:
            raise ValueError(f"{name} must have {rows} x {size} numbers, got {tuple(tensor.shape)}")
        if tensor.dtype != dtype:
            raise ValueError(f"all buffers must have one type; {name} is {tensor.dtype}, not {dtype}")
        shape = encoded.factors.get(i)
        if shape is None or tuple(tensor.shape[-2:]) != shape[1:] or not is_transposed(tensor):
            _check_memory(name, tensor)


def is_transposed(weight: Tensor) -> bool:
    """Return whether a weight (K, N) or (heads, K, N) on the CPU is the transpose of a contiguous tensor."""
    if not weight.is_cpu or weight.dim() not in (2, 3):
        return False
    *heads, K, N = weight.shape
    steps = weight.stride()
    return steps[-2:] == (1, K) and (not heads or heads == [1] or steps[0] == K * N)


def _check_memory(name: str, tensor: Tensor) -> None:
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous on the CPU, got strides {tensor.stride()} on {tensor.device}")
