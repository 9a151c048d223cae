"""A compiled cell follows every change of its settings, methods and weights."""

import types
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from comparison import Base, compute_results, make_job, why_not
from torch import nn

from cells import Pointwise
from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

SCALE = 0.5


def check_against_loop(cell, job):
    """Check that the kernel runs and returns what the loop returns now."""
    assert why_not(cell, job) is None
    torch.testing.assert_close(
        compute_results(kernel.run, cell, job), compute_results(loop.run, cell, job), rtol=1e-11, atol=1e-12
    )


def test_submodules_of_another_size_are_traced_again():
    class Wide(Base):
        def new(self, x, h):
            return torch.tanh(x + self.down(torch.relu(self.up(h))))

    cell = Wide().double()
    job = make_job(cell)
    for width in (3, 7):
        cell.up, cell.down = nn.Linear(4, width).double(), nn.Linear(width, 4).double()
        check_against_loop(cell, job)


@pytest.mark.parametrize("where", ["cell", "submodule", "class", "list", "dict"])
def test_a_changed_setting_takes_effect(where):
    class Mine(Base):
        beta = 1.0

        def new(self, x, h):
            return super().new(x, h) * self.beta * self.many[0] * self.named["a"] * self.norm.eps

    cell = Mine().double()
    cell.many, cell.named = [1.0], {"a": 1.0}
    job = make_job(cell)
    check_against_loop(cell, job)
    {
        "cell": lambda: setattr(cell, "alpha", 0.9),
        "submodule": lambda: setattr(cell.norm, "eps", 0.1),
        "class": lambda: setattr(Mine, "beta", 2.0),
        "list": lambda: cell.many.__setitem__(0, 2.0),
        "dict": lambda: cell.named.__setitem__("a", 2.0),
    }[where]()
    check_against_loop(cell, job)


@pytest.mark.parametrize("where", ["cell", "class", "submodule", "function"])
def test_a_replaced_method_takes_effect(where, monkeypatch):
    class Mine(Base):
        def new(self, x, h):
            return transform(super().new(x, h))

    cell = Mine().double()
    job = make_job(cell)
    check_against_loop(cell, job)
    before = compute_results(kernel.run, cell, job)[0]
    if where == "cell":
        cell.helper = types.MethodType(lambda _, new, h: new - h, cell)
    elif where == "class":
        monkeypatch.setattr(Base, "helper", lambda _, new, h: new - h)
    elif where == "submodule":
        monkeypatch.setattr(cell.U, "forward", lambda h: h)
    else:
        monkeypatch.setitem(globals(), "transform", lambda h: 0.4 * h)
    check_against_loop(cell, job)
    assert not torch.allclose(compute_results(kernel.run, cell, job)[0], before)


def transform(h):
    return SCALE * h


def test_a_changed_global_number_takes_effect(monkeypatch):
    class Mine(Base):
        def new(self, x, h):
            return transform(super().new(x, h))

    cell = Mine().double()
    job = make_job(cell)
    check_against_loop(cell, job)
    monkeypatch.setitem(globals(), "SCALE", 0.7)
    check_against_loop(cell, job)


class Holder:
    """An object with a factor, as an attribute of a cell or as a global."""

    def __init__(self, factor):
        self.factor = factor

    def scale(self, h):
        return self.factor * h


class SlotHolder(Holder):
    __slots__ = ("extra",)


HOLDER = Holder(0.5)


def build_closure(factor):
    """Return a function with a variable of this one, and another that changes it."""

    def scale(h):
        return factor * h

    def change(value):
        nonlocal factor
        factor = value

    return scale, change


class Scaled(Base):
    """A cell that applies a function, which is one of its attributes."""

    def new(self, x, h):
        return self.scale(super().new(x, h))


def scale_globally(h):
    return HOLDER.scale(h)


def scale_by(holder, h):
    return holder.factor * h


def scale_by_default(h, factors=[0.5]):  # noqa: B006  # changed by a test
    return factors[0] * h


def build_changing(where):
    """Return a function, and another that changes what the first one computes without replacing it."""
    holder, factors = Holder(0.5), np.array([0.5])
    if where == "closure":
        return build_closure(0.5)
    if where == "numpy":
        return lambda h: float(factors[0]) * h, lambda v: factors.__setitem__(0, v)
    functions = {"method": holder.scale, "partial": partial(scale_by, holder), "lambda": lambda h: holder.factor * h}
    if where in functions:
        return functions[where], lambda v: setattr(holder, "factor", v)
    if where == "default":
        return scale_by_default, lambda v: scale_by_default.__defaults__[0].__setitem__(0, v)
    assert where == "global object"
    return scale_globally, lambda v: setattr(HOLDER, "factor", v)


@pytest.mark.parametrize("where", ["closure", "method", "partial", "lambda", "numpy", "default", "global object"])
def test_a_function_that_computes_something_else_is_traced_again(where):
    cell = Scaled().double()
    cell.scale, change = build_changing(where)
    check_changes(cell, change)


def test_a_variable_of_the_function_around_a_cell_is_followed():
    factor = 0.5

    class Mine(Base):
        def new(self, x, h):
            return factor * super().new(x, h)

    def change(value):
        nonlocal factor
        factor = value

    check_changes(Mine().double(), change)


def test_an_object_that_refers_to_itself_is_followed():
    cell = Scaled().double()
    holder = SlotHolder(0.5)
    holder.me = holder
    cell.scale = holder.scale
    check_changes(cell, lambda value: setattr(holder, "factor", value))


def check_changes(cell, change):
    """Check that the kernel returns what the loop returns now; the cell is not copied, so that its objects stay."""
    job, outputs = make_job(cell), []
    try:
        for value in (0.5, 0.25):
            change(value)
            assert why_not(cell, job) is None
            outputs.append(kernel.run(cell, replace(job))[0])
            torch.testing.assert_close(outputs[-1], loop.run(cell, job)[0], rtol=1e-11, atol=1e-12)
    finally:
        change(0.5)
    assert not torch.allclose(*outputs)


def test_a_setting_with_too_many_parts_to_compare_is_refused():
    cell = Base().double()
    cell.words = [[i] for i in range(20_000)]
    assert "a setting of the cell has more than 10000 parts" in why_not(cell, make_job(cell))


def test_the_default_type_of_new_tensors_takes_effect():
    class Mine(Base):
        def new(self, x, h):
            return super().new(x, h) * torch.finfo(torch.ones(1).dtype).eps ** 0.1

    cell = Mine().double()
    job = make_job(cell)
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            check_against_loop(cell, job)
        finally:
            torch.set_default_dtype(torch.float32)


def test_a_parameter_of_another_value_or_shape_takes_effect():
    cell = Pointwise(3, 4, dtype=torch.float64)
    job = make_job(cell)
    check_against_loop(cell, job)
    with torch.no_grad():
        cell.u.mul_(-1)
    check_against_loop(cell, job)
    cell.u = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
    check_against_loop(cell, job)
