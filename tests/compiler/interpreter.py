"""Run a program with torch, one step and one part at a time: slow and obvious, the reference for backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seqloom.compiler.ir import Access, Argument, Nest, Place, Product, Program, Register

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "not": torch.logical_not,
    "copy": torch.clone,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "gt": torch.gt,
    "lt": torch.lt,
    "ge": torch.ge,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "sigmoid_backward": lambda g, y: g * (1 - y) * y,
    "tanh_backward": lambda g, y: g * (1 - y * y),
    "where": lambda a, b, c: torch.where(a != 0, b, c),
    "fma": lambda a, b, c: a * b + c,
}
COMBINE: dict[str, Callable[..., Tensor]] = {"sum": torch.sum, "maximum": torch.amax, "minimum": torch.amin}


def interpret(program: Program, buffers: Sequence[Tensor], B: int, offset: Tensor, count: Tensor) -> None:
    """Run a program as `run_program` does, in place."""
    steps = range(len(count))
    for t in reversed(steps) if program.reverse else steps:
        rows = int(count[t])
        views = [
            _select_rows(buffer.place, tensor, buffer.size, t, rows, B, offset)
            for buffer, tensor in zip(program.buffers, buffers, strict=True)
        ]
        for part in program.parts if rows else ():
            if isinstance(part, Product):
                _multiply(part, views)
            else:
                _run_nest(part, views, rows)


def _select_rows(place: Place, tensor: Tensor, size: int, t: int, rows: int, B: int, offset: Tensor) -> Tensor:
    """Return the rows of step t as a view (rows, size); of a weight (1, size)."""
    if place is Place.WEIGHT:
        return tensor.view(1, size)
    before = B + int(offset[t - 1]) if t else 0
    first = {Place.ROW: 0, Place.TIME: int(offset[t]), Place.BEFORE: before, Place.AFTER: B + int(offset[t])}[place]
    return tensor.view(-1, size)[first : first + rows]


def _multiply(p: Product, views: Sequence[Tensor]) -> None:
    factor = views[p.source][:, p.offset : p.offset + p.rows * p.heads * p.K].reshape(-1, p.rows, p.heads, p.K)
    weight = views[p.weight].view(p.heads, p.K, p.N)
    views[p.out].copy_(torch.einsum("brhk,hkn->brhn", factor, weight).flatten(1))


def _indices(access: Access, sizes: Sequence[int]) -> Tensor:
    """Return the position in a row for every iteration of the loops."""
    index = torch.full(tuple(sizes), access.offset)
    for k, (stride, size) in enumerate(zip(access.strides, sizes, strict=True)):
        index = index + (torch.arange(size) * stride).view([size if d == k else 1 for d in range(len(sizes))])
    return index


def _run_nest(nest: Nest, views: Sequence[Tensor], rows: int) -> None:
    registers: dict[int, Tensor] = {}
    dtype = views[0].dtype

    def read(argument: Argument) -> Tensor:
        if isinstance(argument, Register):
            return registers[argument.index]
        if isinstance(argument, Access):
            values = views[argument.buffer][:, _indices(argument, nest.sizes)]
            return values.expand(rows, *nest.sizes)
        return torch.full((rows, *nest.sizes), argument, dtype=dtype)

    for instruction in nest.body:
        result = FUNCTIONS[instruction.operator](*(read(a) for a in instruction.arguments))
        registers[instruction.out] = result.to(dtype)
    for store in nest.stores:
        views[store.to.buffer][:, _indices(store.to, nest.sizes)] = read(store.value)
    outer = len(nest.sizes) - nest.inner
    for reduction in nest.reductions:
        value = read(reduction.value).reshape(rows, *nest.sizes[:outer], -1)
        to = Access(reduction.to.buffer, reduction.to.offset, reduction.to.strides[:outer])
        views[to.buffer][:, _indices(to, nest.sizes[:outer])] = COMBINE[reduction.operator](value, -1)
