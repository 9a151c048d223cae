"""A compiled cell follows every change of its settings, methods and weights."""

import types

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


def test_a_parameter_of_another_value_or_shape_takes_effect():
    cell = Pointwise(3, 4, dtype=torch.float64)
    job = make_job(cell)
    check_against_loop(cell, job)
    with torch.no_grad():
        cell.u.mul_(-1)
    check_against_loop(cell, job)
    cell.u = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
    check_against_loop(cell, job)
