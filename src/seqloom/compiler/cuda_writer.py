"""Shared parts of the CUDA C++ writers: operators, indices, loads and stores."""

from __future__ import annotations

import math
from collections.abc import Callable

from seqloom.compiler.ir import Access, Argument, Nest, Place, Register
from seqloom.compiler.staging import Staged

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_TRUTH = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
_PATTERNS = {
    "neg": "-({0})",
    "abs": "op::absolute({0})",
    "copy": "{0}",
    "not": "Real({0} == Real(0))",
    "and": "Real({0} != Real(0) && {1} != Real(0))",
    "or": "Real({0} != Real(0) || {1} != Real(0))",
    "where": "op::select({0}, {1}, {2})",
    **{name: f"{{0}} {sign} {{1}}" for name, sign in _INFIX.items()},
    **{name: f"Real({{0}} {sign} {{1}})" for name, sign in _TRUTH.items()},
}
PLACES = {Place.ROW: "row", Place.TIME: "time", Place.BEFORE: "before", Place.AFTER: "after"}

PRELUDE = """\
#include "compiled/operators.cuh"
#include "compiled/table.cuh"
constexpr int TYPE = {type}, THREADS = {threads}, ROWS = {rows}, LANES = THREADS / ROWS;
typedef Numbers<TYPE>::Stored Number;
typedef Numbers<TYPE>::Real Real;
DEV Real load(const Number* from) {{ return widen<TYPE>(get_constant(from)); }}
DEV Real load_written(const Number* from) {{ return widen<TYPE>(*from); }}
DEV Real load_wide(const Real* from) {{ return *from; }}
DEV void store(Number* to, Real v) {{ *to = narrow<TYPE>(v); }}
DEV void store_wide(Real* to, Real v) {{ *to = v; }}
DEV int slot() {{ return thread() / LANES; }}
DEV int lane() {{ return thread() % LANES; }}
DEV Real round_to_type(Real v) {{ return widen<TYPE>(narrow<TYPE>(v)); }}
"""


class CudaWriter:
    """Base class of both CUDA C++ writers."""

    def __init__(self, staged: Staged, type_: str) -> None:
        self.staged, self.type, self.lines = staged, type_, list[str]()
        self.sign = "-" if staged.reverse else "+"
        nests = [nest for segment in staged.segments for nest in segment.nests]
        self.written = {staged.memory[a.buffer] for nest in nests for a in nest.writes()}
        self.wide = {i for i in range(len(staged.buffers)) if staged.is_wide(i)}

    def is_written(self, a: Access) -> bool:
        return self.staged.memory[a.buffer] in self.written

    def name_load(self, a: Access) -> str:
        return "load_wide" if a.buffer in self.wide else "load_written" if self.is_written(a) else "load"

    def name_store(self, a: Access) -> str:
        return "store_wide" if a.buffer in self.wide else "store"

    def emit(self, depth: int, line: str) -> None:
        self.lines.append("  " * depth + line)

    def emit_variables(self, depth: int, sizes: tuple[int, ...], first: int, flat: str) -> None:
        """Emit the loop variables that correspond to a flat index."""
        for k, size in enumerate(sizes):
            inner = math.prod(sizes[k + 1 :])
            quotient = flat if inner == 1 else f"{flat} / {inner}"
            self.emit(depth, f"const int i{first + k} = {quotient}{f' % {size}' if k else ''};")

    def emit_body(self, depth: int, nest: Nest, load: Callable[[Access], str]) -> Callable[[Argument], str]:
        """Emit the instructions; return a function that returns the code of an argument."""
        names: dict[Access, str] = {}

        def text(a: Argument) -> str:
            if isinstance(a, Register):
                return f"r{a.index}"
            if not isinstance(a, Access):
                return write_literal(a)
            if a not in names:
                names[a] = f"v{len(names)}"
                self.emit(depth, f"const Real {names[a]} = {load(a)};")
            return names[a]

        for i in nest.body:
            arguments = [text(a) for a in i.arguments]
            pattern = _PATTERNS.get(i.operator)
            value = pattern.format(*arguments) if pattern else f"op::{i.operator}({', '.join(arguments)})"
            self.emit(depth, f"const Real r{i.out} = {value};")
        return text


def write_literal(v: float) -> str:
    if math.isnan(v):
        return "op::not_a_number<Real>()"
    if math.isinf(v):
        return f"{'-' if v < 0 else ''}op::infinity<Real>()"
    return f"Real({float(v)!r})"


def write_index(a: Access, nest: Nest) -> str:
    """Return the code for the element of a row that an access reads or writes."""
    sizes = nest.sizes
    dense = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    terms = [f"i{k}" if s == 1 else f"{s} * i{k}" for k, s in enumerate(a.strides) if s]
    if terms and not nest.inner and all(s == d or n == 1 for s, d, n in zip(a.strides, dense, sizes, strict=True)):
        terms = ["i"]  # the flat index itself
    return " + ".join([str(a.offset), *terms] if a.offset or not terms else terms)


def is_same(a: Access, b: Access) -> bool:
    """Return whether two accesses use the same element of their rows in every iteration."""
    return (a.offset, a.strides) == (b.offset, b.strides)


def _span(a: Access, nest: Nest) -> tuple[int, int]:
    """Return the first and the last element of a row that an access may use."""
    ends = [s * (size - 1) for s, size in zip(a.strides, nest.sizes, strict=True)]
    return a.offset + sum(min(e, 0) for e in ends), a.offset + sum(max(e, 0) for e in ends)


def overlap(a: Access, b: Access, nest: Nest, other: Nest | None = None) -> bool:
    (low, high), (first, last) = _span(a, nest), _span(b, other or nest)
    return low <= last and first <= high
