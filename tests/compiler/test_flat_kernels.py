"""Which programs run as one kernel whose threads do not wait for each other."""

import pytest

from seqloom.compiler.cuda import write_cuda
from seqloom.compiler.ir import Access, Buffer, Instruction, Nest, Place, Program, Reduction, Register, Store
from seqloom.compiler.plan import BufferMemory, Scan

N = 8
OWN, REVERSED, FIRST_HALF, LAST_HALF = (0, (1,)), (N - 1, (-1,)), (0, (1,)), (N // 2, (1,))


def is_flat(*nests):
    """Return whether every thread needs only what it wrote itself: the kernel then has threads for units, not rows."""
    buffers = (Buffer("x", Place.TIME, N), Buffer("h", Place.TIME, N), Buffer("y", Place.TIME, N))
    scan = Scan(Program(buffers, nests), tuple(BufferMemory("stored", k) for k in range(3)))
    return write_cuda(scan, "float32").units > 0


def copy(source, target, units=N, inner=0):
    """Return loops that write tanh(source) to target."""
    body = (Instruction("tanh", 0, (Access(*source),)),)
    if inner:
        return Nest((units,), inner, body, (), (Reduction("sum", Access(*target), Register(0)),))
    return Nest((units,), 0, body, (Store(Access(*target), Register(0)),))


def test_units_that_read_what_they_wrote_need_not_wait():
    assert is_flat(copy((0, *OWN), (1, *OWN)), copy((1, *OWN), (2, *OWN)))


def test_a_unit_that_reads_what_another_wrote_waits():
    assert not is_flat(copy((0, *OWN), (1, *OWN)), copy((1, *REVERSED), (2, *OWN)))


def test_units_may_read_other_places_of_what_no_unit_writes():
    assert is_flat(copy((0, *REVERSED), (1, *OWN)), copy((1, *OWN), (2, *OWN)))


def test_two_units_must_not_write_the_same_place():
    assert not is_flat(copy((0, *OWN), (1, *OWN)), copy((0, *OWN), (1, *REVERSED)))


def test_units_may_write_and_read_different_halves_of_a_row():
    half = N // 2
    nests = copy((0, *OWN), (1, *FIRST_HALF), half), copy((1, *FIRST_HALF), (1, *LAST_HALF), half)
    assert is_flat(*nests)


@pytest.mark.parametrize("other", [copy((1, *OWN), (2, *OWN), N // 2), copy((1, *OWN), (2, 0, (0,)), inner=1)])
def test_loops_of_other_sizes_and_sums_need_all_units_of_a_row(other):
    assert not is_flat(copy((0, *OWN), (1, *OWN)), other)
