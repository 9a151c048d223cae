"""The emulation's binary16 numbers, against torch's, over all 65,536 of them."""

import ctypes
import subprocess

import emulator
import pytest
import torch

SOURCE = """
#include "half.hpp"
extern "C" void widen(const uint16_t* from, float* to, long n) {
  for (long i = 0; i < n; i++) to[i] = half_to_float(from[i]);
}
extern "C" void narrow(const float* from, uint16_t* to, long n) {
  for (long i = 0; i < n; i++) to[i] = float_to_half(from[i]);
}
"""
HALVES = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)  # as bits


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    if emulator.COMPILER is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("half")
    (folder / "half.cpp").write_text(SOURCE)
    command = [emulator.COMPILER, "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{emulator.HERE}", "half.cpp"]
    subprocess.run([*command, "-o", "half.so"], check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "half.so"))


def apply(function, given, dtype):
    result = torch.empty(given.shape, dtype=dtype)
    function(ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(result.data_ptr()), ctypes.c_long(given.numel()))
    return result


def test_every_half_widens_to_the_float_of_its_value(half):
    actual, expected = apply(half.widen, HALVES, torch.float32), HALVES.view(torch.float16).float()
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    number = ~expected.isnan()  # the sign of a NaN is the processor's choice
    assert torch.equal(actual.signbit()[number], expected.signbit()[number])


def test_every_half_survives_a_round_trip_and_nan_stays_nan(half):
    wide = HALVES.view(torch.float16).float()
    back = apply(half.narrow, wide, torch.int16)
    number = ~wide.isnan()
    assert torch.equal(back[number], HALVES[number])
    assert back[~number].view(torch.float16).isnan().all()


def test_a_float_between_two_halves_goes_to_the_nearest_and_a_tie_to_the_even_one(half):
    """Take the midpoint of every two neighbours and the floats on both sides of it: where rounding decides."""
    positive = torch.arange(0, 0x7C01, dtype=torch.int16).view(torch.float16).double()  # 0 to infinity
    positive[-1] = 2.0**16  # where the next number would be
    middle = ((positive[1:] + positive[:-1]) / 2).float()
    around = [middle, middle.nextafter(torch.tensor(torch.inf)), middle.nextafter(torch.tensor(-torch.inf))]
    given = torch.cat([*around, torch.tensor([1e-40, 1e38, torch.inf])])
    given = torch.cat([given, -given])
    assert torch.equal(apply(half.narrow, given, torch.int16), given.half().view(torch.int16))
