"""The compiler's intermediate form: what one time step computes, as products and nests of loops.

A `Program` runs once for every time step, for all rows of the batch that have that step. Its parts run in order. A
`Product` multiplies rows with a weight. A `Nest` is a set of loops over the elements of one row, with straight-line
code inside. Every value lives in a `Buffer` or, inside a nest, in a register.

Rows are sorted by length, longest first, and packed: step t has the rows 0 .. count[t] - 1, and the packed row
offset[t] + r is row r of step t. The result of a program does not depend on how rows are divided among threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

UNARY = (
    *("neg", "abs", "sign", "relu", "sigmoid", "tanh", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal"),
    *("sin", "cos", "sinh", "cosh", "erf", "floor", "ceil", "round", "trunc", "not", "copy"),
)
BINARY = (
    *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "gt", "lt", "ge", "le", "eq", "ne", "and", "or"),
    *("sigmoid_backward", "tanh_backward"),  # (gradient, output): g y (1 - y) and g (1 - y y)
)
TERNARY = ("where", "fma")  # where(a, b, c): b if a is not 0, else c;  fma(a, b, c) = a b + c
OPERATORS = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), **dict.fromkeys(TERNARY, 3)}  # and their arity


REDUCTIONS = ("sum", "maximum", "minimum")


class Place(Enum):
    """Where row r of step t of a buffer is, counted in rows from the start of the buffer."""

    WEIGHT = "weight"  # one value for all rows and steps
    ROW = "row"  # r: one value per row for all steps, or a buffer for values that live within one step
    TIME = "time"  # offset[t] + r
    BEFORE = "before"  # r if t is 0, else B + offset[t - 1] + r: the state before the step
    AFTER = "after"  # B + offset[t] + r: the state after the step


@dataclass(frozen=True)
class Buffer:
    """A piece of memory that programs read or write; contiguous.

    Attributes:
        name: For messages.
        place: How a step's rows lie in it.
        size: Elements per row; for a weight, in total.
    """

    name: str
    place: Place
    size: int


@dataclass(frozen=True)
class Access:
    """One element of the current row for each iteration: buffer[offset + sum of strides[k] * loop variable k]."""

    buffer: int  # its index in the program's list
    offset: int
    strides: tuple[int, ...]  # one per loop of the nest


@dataclass(frozen=True)
class Register:
    """The value of an earlier instruction of the nest, in the same iteration."""

    index: int


Argument = Register | Access | float


@dataclass(frozen=True)
class Instruction:
    """register[out] = operator(arguments). Truth values are 0 and 1. Every register is written once."""

    operator: str
    out: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Store:
    """Write a value to memory in every iteration of a nest."""

    to: Access
    value: Argument


@dataclass(frozen=True)
class Reduction:
    """Combine a value over the inner loops and write it once for each iteration of the outer ones.

    Attributes:
        operator: One of REDUCTIONS.
        to: Where to write; its strides of the inner loops are 0.
        value: What to combine.
    """

    operator: str
    to: Access
    value: Argument


@dataclass(frozen=True)
class Nest:
    """Loops over the elements of a row, for every row.

    No store writes what an instruction of the same nest reads by an `Access`, so that iterations, and rows, may run in
    any order.

    Attributes:
        sizes: The sizes of the loops, the outermost first; empty for a single iteration.
        inner: How many of the last loops are combined by reductions; 0 if there are none.
        body: The instructions.
        stores: What to write in every iteration; empty if there are reductions.
        reductions: What to combine.
    """

    sizes: tuple[int, ...]
    inner: int
    body: tuple[Instruction, ...]
    stores: tuple[Store, ...]
    reductions: tuple[Reduction, ...] = ()

    def reads(self) -> list[Access]:
        """Return what the nest reads from memory."""
        values = [a for i in self.body for a in i.arguments]
        values += [s.value for s in self.stores] + [r.value for r in self.reductions]
        return [a for a in values if isinstance(a, Access)]

    def writes(self) -> list[Access]:
        """Return what the nest writes to memory."""
        return [s.to for s in self.stores] + [r.to for r in self.reductions]


@dataclass(frozen=True)
class Product:
    """Multiply rows with a weight: out[.., head, n] = sum over k of source[.., head, k] weight[head, k, n].

    A row of the batch holds `rows` rows of (heads, K) in the source, at `offset`, and of (heads, N) in the result.

    Attributes:
        source: The buffer of the left factor. Its rows have `size` elements; the factor is rows * heads * K of them.
        offset: Where the factor begins in the source's row.
        weight: The buffer of the weight, (heads, K, N) and contiguous.
        out: The buffer of the result, with rows * heads * N elements per row.
        heads: Number of independent products.
        K: Elements of a row of the factor.
        N: Elements of a row of the result.
        rows: Rows of the product for each row of the batch.
    """

    source: int
    offset: int
    weight: int
    out: int
    heads: int
    K: int
    N: int
    rows: int = 1


@dataclass(frozen=True)
class Program:
    """What one time step computes.

    Attributes:
        buffers: All memory that it touches.
        parts: Products and nests, in order; each reads what earlier ones wrote.
        reverse: Whether steps run from the last to the first.
    """

    buffers: tuple[Buffer, ...]
    parts: tuple[Product | Nest, ...]
    reverse: bool = False

    def list_written(self) -> set[int]:
        """Return the indices of the buffers that a part writes."""
        products = {part.out for part in self.parts if isinstance(part, Product)}
        return products | {a.buffer for part in self.parts if isinstance(part, Nest) for a in part.writes()}

    @property
    def stages(self) -> int:
        """How many products must run in sequence, because each needs a result of the previous one."""
        depth: dict[int, int] = {}
        for part in self.parts:
            if isinstance(part, Product):
                depth[part.out] = depth.get(part.source, 0) + 1
                continue
            level = max((depth.get(a.buffer, 0) for a in part.reads()), default=0)
            for access in part.writes():
                depth[access.buffer] = max(depth.get(access.buffer, 0), level)
        return max(depth.values(), default=0)
