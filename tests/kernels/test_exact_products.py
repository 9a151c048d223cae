"""Exact products of float32 by halves of fp16: the kernels' own text on the CPU, against float64."""

import emulator
import pytest
import torch

from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime import launch

pytestmark = pytest.mark.usefixtures("emulated")


def far(actual, true):
    return float((actual.double() - true).norm() / true.norm())


def matrix(rows, columns, seed=0):
    torch.manual_seed(seed)
    return torch.randn(rows, columns)


def test_a_product_is_as_exact_as_that_of_torch():
    a, b, bias = matrix(150, 72), matrix(136, 72, 1), torch.randn(136)
    true = a.double() @ b.double().t() + bias.double()
    out = torch.full((150, 136), torch.nan)
    assert exact.multiply(exact.split(a), exact.split(b), bias, out) is out
    assert far(out, true) < 1.2 * far(torch.addmm(bias, a, b.t()), true)


def test_a_sum_over_rows_is_as_exact_as_that_of_torch(monkeypatch):
    monkeypatch.setattr(exact, "choose_depth", lambda *_: 64)
    a, b = matrix(200, 136), matrix(200, 24, 1)
    true = a.double().t() @ b.double()
    assert far(exact.multiply_transposed(exact.split(a), exact.split(b)), true) < 1.2 * far(a.t() @ b, true)


def test_rows_may_lie_anywhere_and_have_any_size():
    x = torch.randn(40, 3, 16) * torch.logspace(-30, 30, 40).view(-1, 1, 1)
    whole = exact.split(x.transpose(0, 1))
    rows = x.transpose(0, 1).reshape(120, 16)
    back = whole.parts.double().sum(0) * whole.units.double().repeat_interleave(32)[:120, None]
    assert torch.isfinite(whole.parts).all()
    largest = torch.stack([piece.abs().max() for piece in rows.split(32)]).repeat_interleave(32)[:120, None]
    assert ((back - rows.double()).abs() <= 2**-22 * rows.abs().double() + 2**-38 * largest.double()).all()


def test_what_is_not_finite_stays_so_in_its_row_alone():
    a, b = matrix(40, 16), matrix(8, 16, 1)
    a[3, 5], a[7, 0] = torch.inf, torch.nan
    is_finite = torch.isfinite(exact.multiply(exact.split(a), exact.split(b))).all(1)
    assert is_finite.logical_not().nonzero().flatten().tolist() == [3, 7]
    assert far(exact.multiply(exact.split(0 * b), exact.split(b)) + 1, torch.ones(8, 8).double()) == 0


def leave_out(monkeypatch, text):
    """Launch kernels without the first statement of this text."""
    change = text, text.partition(";")[2]
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=change))


@pytest.mark.parametrize("barrier", ["wait_block(); fetch(step", "cp_async_wait<STAGES - 2>();"])
def test_a_missing_barrier_is_noticed(monkeypatch, barrier):
    a, b = exact.split(matrix(128, 224)), exact.split(matrix(128, 224, 1))
    right = exact.multiply(a, b)
    leave_out(monkeypatch, barrier)
    assert not torch.equal(exact.multiply(a, b), right)


def test_pieces_fill_the_gpu():
    for M, N, K in ((1536, 512, 32768), (768, 256, 131072), (3072, 1024, 4096), (1536, 512, 600)):
        depth = exact.choose_depth(M, N, K, 264)
        blocks = -(-K // depth) * -(-M // 128) * -(-N // 128)
        assert depth % 32 == 0
        assert depth >= min(K, 512)
        assert blocks / (264 * -(-blocks // 264)) > (0.85 if K > 1000 else 0)


@pytest.fixture
def by_wgmma(monkeypatch):
    monkeypatch.setattr(exact, "has_wgmma", lambda *_: True)


@pytest.mark.usefixtures("by_wgmma")
@pytest.mark.parametrize("blocks", [132, 3])  # four tiles: one block has two of them
def test_products_of_four_warps_are_as_exact(monkeypatch, blocks):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: blocks)
    a, b, bias = matrix(150, 200), matrix(136, 200, 1), torch.randn(136)
    true = a.double() @ b.double().t() + bias.double()
    out = torch.full((150, 136), torch.nan)
    assert exact.multiply(exact.split(a), exact.split(b), bias, out) is out
    assert far(out, true) < 1.2 * far(torch.addmm(bias, a, b.t()), true)


@pytest.mark.usefixtures("by_wgmma")
@pytest.mark.parametrize(
    "missing", ["wait_block(); begin_products();", "cp_async_wait<AHEAD - 1>();", "fence_proxy_async();"]
)
def test_what_products_of_four_warps_wait_for_is_needed(monkeypatch, missing):
    a, b = exact.split(matrix(128, 320)), exact.split(matrix(128, 320, 1))
    right = exact.multiply(a, b)
    leave_out(monkeypatch, missing)
    try:
        assert not torch.equal(exact.multiply(a, b), right)
    except RuntimeError:
        return  # the emulation itself saw it


@pytest.mark.usefixtures("by_wgmma")
def test_sums_over_rows_of_four_warps_are_as_exact(monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 3)
    monkeypatch.setattr(exact, "choose_depth", lambda *_: 224)
    a, b = matrix(300, 136), matrix(300, 24, 1)
    true = a.double().t() @ b.double()
    assert far(exact.multiply_transposed(exact.split(a), exact.split(b)), true) < 1.2 * far(a.t() @ b, true)
