"""A cell whose tensors change is traced again; `test_guards.py` has everything else that a step reads."""

import pytest
import torch
from comparison import Base, compute_results, make_job, why_not
from torch import nn

from cells import Pointwise
from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))


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


def test_a_setting_with_too_many_parts_to_compare_is_refused():
    cell = Base().double()
    cell.words = [[i] for i in range(20_000)]
    assert "a setting of the cell has more than 10000 parts" in why_not(cell, make_job(cell))


def test_a_parameter_of_another_value_or_shape_takes_effect():
    cell = Pointwise(3, 4, dtype=torch.float64)
    job = make_job(cell)
    check_against_loop(cell, job)
    with torch.no_grad():
        cell.u.mul_(-1)
    check_against_loop(cell, job)
    cell.u = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
    check_against_loop(cell, job)
