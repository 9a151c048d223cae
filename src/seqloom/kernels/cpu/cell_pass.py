"""Write and run passes of compiled cells: one call of the engine for a whole batch (csrc/cell_pass.hpp).

A pass is a list of operations on buffers. Its values are views of buffers with a size and a stride for every dimension,
of which one may have all packed rows of a batch (`ALL`). Rows are packed as `kernels/compiled/packing.py` describes.
"""

from __future__ import annotations

import ctypes
import math
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.compiler import ir
from seqloom.compiler.plan import UnfitError
from seqloom.core.memory import empty
from seqloom.kernels.cpu.engine import TYPES, ThreadSplit, load_library
from seqloom.kernels.cpu.machine import Encoded
from seqloom.kernels.cpu.nest_code import CODES

ALL = -1  # a size: the packed rows of all steps
SHARED, PACKED, STATES = range(3)  # rows of a buffer: one, all packed ones, or those of the batch before these
# As csrc/cell_pass.hpp lists them.
LOAD, STORE, BEGIN, END, BEGIN_REVERSE, END_REVERSE, BEFORE, RUN, MULTIPLY, REDUCE, POINTWISE, COPY, FILL = range(13)
MOST_RESULTS = 62  # one bit of a number for each
SLACK = 32  # elements after a buffer that full vectors may reach
_OUT_OF_MEMORY = 1  # what seqloom_cell_pass returns
_address, _count = Tensor.data_ptr, Tensor.numel


class UnsupportedPassError(Exception):
    """The engine cannot run a pass; the message says why."""


def require(holds: bool, reason: str) -> None:
    """Raise UnsupportedPassError unless a condition holds."""
    if not holds:
        raise UnsupportedPassError(reason)


class View(NamedTuple):
    """A part of a buffer.

    Attributes:
        buffer: The index of the buffer.
        sizes: Its shape; one size may be `ALL`.
        strides: For each dimension, in elements.
        offset: Of the first element.
        is_after: Whether the first rows of the batch are skipped: the states after the steps.
    """

    buffer: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    is_after: bool = False

    def is_tight(self) -> bool:
        """Return whether its elements follow each other in memory."""
        if ALL in self.sizes[1:]:
            return False
        pairs = zip(self.sizes, self.strides, list_strides(self.sizes), strict=True)
        return all(size == 1 or mine == tight for size, mine, tight in pairs)

    def permute(self, dims: Sequence[int]) -> View:
        """Reorder the dimensions."""
        return self._replace(sizes=tuple(self.sizes[d] for d in dims), strides=tuple(self.strides[d] for d in dims))

    def slice(self, dim: int, start: int, end: int) -> View:
        """Return the part from `start` to `end` of one dimension."""
        sizes = list(self.sizes)
        require(sizes[dim] != ALL and 0 <= start <= end <= sizes[dim], "a part of all rows is taken")
        sizes[dim] = end - start
        return self._replace(sizes=tuple(sizes), offset=self.offset + start * self.strides[dim])

    def reshape(self, sizes: Sequence[int]) -> View:
        """Return the same elements in another shape."""
        mine = [(s, by) for s, by in zip(self.sizes, self.strides, strict=True) if s != 1]
        if [s for s, _ in mine] == [s for s in sizes if s != 1]:
            strides = iter([by for _, by in mine])
            return self._replace(sizes=tuple(sizes), strides=tuple(1 if s == 1 else next(strides) for s in sizes))
        is_same = (ALL in self.sizes) == (ALL in sizes) and abs(math.prod(self.sizes)) == abs(math.prod(sizes))
        require(is_same and self.is_tight() and ALL not in sizes[1:], "a value is reshaped")
        return self._replace(sizes=tuple(sizes), strides=list_strides(sizes))

    def broadcast(self, sizes: Sequence[int]) -> View:
        """Return a view with as many dimensions as `sizes`; sizes of 1 stay."""
        more = len(sizes) - len(self.sizes)
        require(more >= 0, "a value has more dimensions than the result")
        return self._replace(sizes=(1,) * more + self.sizes, strides=(1,) * more + self.strides)

    def expand(self, sizes: Sequence[int]) -> View:
        """Repeat the elements of dimensions of size 1."""
        view = self.broadcast(sizes)
        pairs = zip(view.sizes, sizes, view.strides, strict=True)
        return view._replace(sizes=tuple(sizes), strides=tuple(by if mine == s else 0 for mine, s, by in pairs))


def list_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor without gaps."""
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


@dataclass
class _Operation:
    """One operation: the buffer that it writes (None for a result), those that it reads, and its code."""

    to: int | None
    reads: tuple[int, ...]
    words: list[int]
    needed_by: int = 0  # a bit for each result


@dataclass
class PassWriter:
    """Write the code of a pass, operation by operation.

    Attributes:
        tensors: The names of the caller's tensors; operations refer to them.
    """

    tensors: Sequence[str]
    buffers: list[tuple[int, int, int, int]] = field(default_factory=list)  # kind, size, tensor, first element
    operations: list[_Operation] = field(default_factory=list)
    results: list[str] = field(default_factory=list)  # tensors that are computed only if they are given
    constants: list[Tensor] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)  # operands that are numbers: the tensor "numbers"

    def add_buffer(self, kind: int, size: int, tensor: str = "", first: int = 0) -> int:
        """Add a buffer of `size` elements per row: in a tensor, from its element `first` on, or in own memory."""
        self.buffers.append((kind, size, self.tensors.index(tensor) if tensor else -1, first))
        return len(self.buffers) - 1

    def make(self, sizes: Sequence[int], tensor: str = "", first: int = 0) -> View:
        """Add a buffer for a value of this shape."""
        sizes = tuple(sizes)
        require(ALL not in sizes[1:], "the rows are not the first dimension of a value")
        kind = PACKED if ALL in sizes else SHARED
        buffer = self.add_buffer(kind, abs(math.prod(sizes)), tensor, first)
        return View(buffer, sizes, list_strides(sizes))

    def view_states(self, buffer: int, sizes: Sequence[int]) -> View:
        """Return the states after the steps, of this shape."""
        return View(buffer, tuple(sizes), list_strides(sizes), is_after=True)

    def add(self, to: int | None, reads: Sequence[View], *words: int) -> None:
        """Add an operation."""
        self.operations.append(_Operation(to, tuple(v.buffer for v in reads), list(words)))

    def _matrix(self, view: View) -> list[int]:
        """Return the code of a view with at most two dimensions."""
        sizes, strides = view.sizes, view.strides
        require(len(sizes) <= 2, "a value has more than two dimensions")
        rows, columns = (1, 1, *sizes)[-2:]
        by, along = (1, 1, *strides)[-2:]
        along = 1 if columns == 1 else along
        return [view.buffer, view.is_after, view.offset, rows, columns, by, along]

    def _result(self, view: View) -> list[int]:
        rows, columns = (1, 1, *view.sizes)[-2:]
        return [view.buffer, rows, columns]

    def copy(self, to: View, source: View) -> None:
        """Copy a value."""
        if len(to.sizes) > 2:
            flat = [abs(math.prod(to.sizes))] if ALL not in to.sizes else [ALL, abs(math.prod(to.sizes))]
            to, source = to.reshape(flat), source.reshape(flat)
        self.add(to.buffer, [source], COPY, *self._matrix(to), *self._matrix(source))

    def tighten(self, view: View, sizes: Sequence[int] | None = None) -> View:
        """Return a value without gaps, in a shape of its own or in another one."""
        if not view.is_tight():
            self.copy(own := self.make(view.sizes), view)
            view = own
        return view if sizes is None else view.reshape(sizes)

    def multiply(self, left: View, right: View) -> View:
        """Return the product of two matrices."""
        require(len(left.sizes) == len(right.sizes) == 2 and left.sizes[1] == right.sizes[0], "a product of heads")
        require(right.sizes[1] != ALL, "a product has the rows in its columns")
        sums_rows = left.sizes[1] == ALL
        if not (left.strides[1] == 1 or (sums_rows and left.strides[0] == 1)):
            left = self.tighten(left)
        if not (right.strides[1] == 1 or (right.strides[0] == 1 and not sums_rows)):
            right = self.tighten(right)
        to = self.make((left.sizes[0], right.sizes[1]))
        self.add(to.buffer, [left, right], MULTIPLY, *self._result(to), *self._matrix(left), *self._matrix(right))
        return to

    def reduce(self, view: View, dim: int, kind: str) -> View:
        """Return the sum, the maximum or the minimum over one dimension, which stays with size 1."""
        sizes = tuple(1 if d == dim else s for d, s in enumerate(view.sizes))
        rest = [s for s in sizes if s != 1]
        view = view.permute([dim, *(d for d in range(len(sizes)) if d != dim)])
        view = view.reshape([view.sizes[0], *(rest or [1])])
        require(len(view.sizes) == 2, "a sum over a value of more than two dimensions")
        to = self.make(rest or [1])
        row = to._replace(sizes=(1, *to.sizes), strides=(1, *to.strides))
        words = [*self._result(row), *self._matrix(view), ir.REDUCTIONS.index(kind)]
        self.add(to.buffer, [view], REDUCE, *words)
        return to.reshape(sizes)

    def compute(self, operator: str, operands: Sequence[View | float], sizes: Sequence[int]) -> View:
        """Return the result of a pointwise operator, of this shape."""
        views = [v if isinstance(v, View) else self.repeat(v, ()) for v in operands]
        kept = [d for d, s in enumerate(sizes) if s != 1]
        views = [v.broadcast(sizes) for v in views]
        if len(kept) > 2:
            require(all(v.sizes == tuple(sizes) for v in views), "a value of more than two dimensions is broadcast")
            flat = [ALL, abs(math.prod(sizes))] if ALL in sizes else [1, math.prod(sizes)]
            views = [self.tighten(v, flat) for v in views]
        else:
            require(all(v.sizes[d] == 1 for v in views for d in range(len(sizes)) if d not in kept), "sizes differ")
            flat = [*[1] * (2 - len(kept)), *(sizes[d] for d in kept)]
            if kept and sizes[kept[-1]] == ALL and len(kept) == 1:
                flat = [ALL, 1]
            views = [v.reshape([v.sizes[d] for d in kept] if len(kept) == 2 else _align(v, kept, flat)) for v in views]
        views = [v if v.strides[1] == 1 or v.sizes[1] == 1 else self.tighten(v) for v in views]
        require(flat[1] == 1 or any(v.sizes[1] != 1 for v in views), "all operands are broadcast")
        to = self.make(flat)
        words = [word for v in views for word in self._matrix(v)]
        self.add(to.buffer, views, POINTWISE, *self._result(to), CODES[operator], *words)
        return to.reshape(sizes)

    def repeat(self, number: float, sizes: Sequence[int]) -> View:
        """Return a number as a value of this shape."""
        self.numbers.append(float(number))
        buffer = self.add_buffer(SHARED, 1, "numbers", len(self.numbers) - 1)
        return View(buffer, tuple(sizes), (0,) * len(sizes))

    def run(self, encoded: Encoded, buffers: Sequence[tuple[View | None, bool]]) -> None:
        """Run a program on values, and on None for memory of its own; True for transposed weights."""
        words = [len(buffers)]
        for view, is_transposed in buffers:
            words += [-1] if view is None else [view.buffer, view.is_after, view.offset, is_transposed]
        first = sum(map(len, self.constants))
        self.constants.append(encoded.constants)
        self.add(-1, [v for v, _ in buffers if v is not None], RUN, *words, first, *encoded.code.tolist())

    def put(self, result: str, view: View, *, is_per_step: bool = False) -> None:
        """Write a value to a tensor of the caller: all its rows in their places, or as it is."""
        place = self.tensors.index(result)
        if is_per_step:
            view = view.reshape([ALL, abs(math.prod(view.sizes))])
            view = view if view.strides[1] == 1 or view.sizes[1] == 1 else self.tighten(view)
            self.add(None, [view], STORE, place, *self._matrix(view))
        else:
            size = math.prod(view.sizes)
            to = View(self.add_buffer(SHARED, size, result), view.sizes, list_strides(view.sizes))
            self.copy(to, view)
            self.operations[-1].to = None
        self.results.append(result)

    def encode(self, skips_results: bool) -> array[int]:
        """Return the code; results that a caller does not want are left out if `skips_results` is set."""
        results = self.results if skips_results else []
        require(len(results) <= MOST_RESULTS, "there are too many gradients")
        needs: dict[int, int] = {}  # by buffer
        order = iter(reversed(self.results))
        for operation in reversed(self.operations):
            if operation.to == -1:
                operation.needed_by = (1 << MOST_RESULTS) - 1
            elif operation.to is None:
                operation.needed_by = 1 << self.results.index(next(order))
            else:
                operation.needed_by = needs.get(operation.to, 0)
            for buffer in operation.reads:
                needs[buffer] = needs.get(buffer, 0) | operation.needed_by
        code = [len(self.buffers), *(word for buffer in self.buffers for word in buffer)]
        code += [len(results), *map(self.tensors.index, results)]
        for operation in self.operations:
            code += [operation.needed_by, len(operation.words), *operation.words]
        return array("q", map(int, code))


def _align(view: View, kept: Sequence[int], flat: Sequence[int]) -> list[int]:
    """Return the two sizes of a view with at most one dimension that is not 1."""
    size = view.sizes[kept[0]] if kept else 1
    return [size, 1] if flat[0] == ALL else [1, size]


class _Args(ctypes.Structure):
    """PassArgs of csrc/cell_pass_args.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "steps", "time_first", "columns")),
        *(("code", ctypes.c_void_p), ("length", ctypes.c_int64), ("constants", ctypes.c_void_p)),
        *(("numbers", ctypes.c_int64), ("many", ctypes.c_int64), ("lengths", ctypes.c_void_p)),
    ]


ARGS_SIZE = ctypes.sizeof(_Args)


@cache
def has_passes() -> bool:
    """Return whether the engine runs passes."""
    engine = load_library()
    return hasattr(engine, "seqloom_cell_pass_size") and engine.seqloom_cell_pass_size() == ARGS_SIZE


class CellPass:
    """A pass that is ready for batches of one shape.

    Args:
        writer: Its operations.
        B: Rows of the batch.
        T: Steps of the padded batch.
        is_time_first: Whether inputs and outputs are (T, B, ...).
        dtype: The type of all tensors.
        split: How threads share its work.
        skips_results: Whether tensors for results may be absent.
    """

    def __init__(
        self,
        writer: PassWriter,
        B: int,
        T: int,
        is_time_first: bool,
        dtype: torch.dtype,
        split: ThreadSplit,
        skips_results: bool = False,
    ) -> None:
        engine = load_library()
        assert isinstance(engine, ctypes.CDLL)
        self.run_engine: Callable[..., int] = engine.seqloom_cell_pass
        self.code = writer.encode(skips_results)
        self.constants = torch.cat(writer.constants)
        self.numbers = torch.tensor(writer.numbers or [0.0], dtype=dtype, device="cpu")
        self.nothing = empty(0, dtype=dtype, device="cpu")  # stands for an absent tensor: its address is 0
        self.type_number, self.threads, self.rows = TYPES[dtype], split.threads, B
        many, constants = len(writer.tensors), (self.constants.data_ptr(), len(self.constants))
        head = B, T, is_time_first, split.columns, *self.code.buffer_info(), *constants, many
        self.head = struct.pack(f"{len(head)}q", *head)
        self.pack = struct.Struct(f"{1 + 2 * many}q").pack  # faster than filling a structure or an array

    def run(self, tensors: Sequence[Any], lengths: Tensor | None) -> None:
        """Run the pass.

        Args:
            tensors: Those of `PassWriter.tensors`, contiguous and of one type; `nothing` for those that are absent.
            lengths: (B,) int64, contiguous; None if all steps are real.

        Raises:
            UnfitError: If the code does not fit the tensors.
            MemoryError: If the engine cannot allocate memory.
        """
        first = 0 if lengths is None else _address(lengths)
        args = self.head + self.pack(first, *map(_address, tensors), *map(_count, tensors))
        result = self.run_engine(self.type_number, self.threads, args)
        if result == _OUT_OF_MEMORY:
            raise MemoryError(f"the CPU engine could not allocate memory for a cell with batch {self.rows}")
        if result:
            raise UnfitError("a pass of a compiled cell reaches outside of its tensors")
