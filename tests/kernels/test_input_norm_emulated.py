"""Layer normalisation of the input's products, the CUDA kernels' own text on the CPU, against float64."""

import emulator
import pytest
import torch
import torch.nn.functional as F

from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.centre import centre_gradient, centre_weights
from seqloom.kernels.cuda.gated.input_norm import normalise, undo_norm
from seqloom.kernels.cuda.runtime import launch

pytestmark = pytest.mark.usefixtures("emulated")


def make_inputs(rows, gates, H, dtype):
    torch.manual_seed(0)
    product = (torch.randn(rows, gates * H) + 3).to(dtype)  # with a mean
    scale, bias, dy = torch.rand(gates * H).to(dtype), torch.randn(gates * H).to(dtype), torch.randn(rows, gates * H)
    return [t.requires_grad_() for t in (product, scale, bias)], dy.to(dtype)


def normalise_slowly(product, scale, bias, gates):
    parts = F.layer_norm(product.unflatten(-1, (gates, -1)), (len(scale) // gates,))
    return parts.flatten(-2) * scale + bias


def find_errors(inputs, dy, gates):
    """Return how far outputs and gradients are from float64, relative to half a last bit."""
    product, scale, bias = (t.detach() for t in inputs)
    y, spread = normalise(product, scale, bias, gates, True)
    actual = y, *undo_norm(dy, product, spread, scale, gates)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    slow = normalise_slowly(*exact, gates)
    expected = slow.detach(), *torch.autograd.grad(slow, exact, dy.double())
    eps = torch.finfo(inputs[0].dtype).eps
    return [float((a - b).norm() / (0.25 * eps * b.norm())) for a, b in zip(actual, expected, strict=True)]


@pytest.mark.parametrize(
    ("rows", "gates", "H", "dtype"),
    [
        (37, 3, 48, torch.bfloat16),  # four vectors at a time, not all lanes have units
        (5, 4, 208, torch.float16),
        (3, 3, 272, torch.bfloat16),  # warp_groups of two warps
        (2, 4, 1024, torch.bfloat16),  # of four
    ],
)
def test_results_are_rounded_once(rows, gates, H, dtype, monkeypatch):
    monkeypatch.setattr(heuristics, "NORM_BLOCKS", 4)
    monkeypatch.setattr(heuristics, "NORM_BACK_BLOCKS", 4)
    assert max(find_errors(*make_inputs(rows, gates, H, dtype), gates)) < 1.5


def test_a_missing_barrier_is_caught(monkeypatch):
    change = "if (p.lane == j) put_shared(at + 4 * (4 * p.warp + j), v[j]); "
    change += "wait_threads(1 + p.warp_group, 32 * GROUP_WARPS);"
    fault = change, change.rpartition("wait_threads")[0]
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=fault))
    try:
        errors = find_errors(*make_inputs(3, 3, 272, torch.bfloat16), 3)
    except RuntimeError:
        return  # the emulation itself saw it
    assert not max(errors) < 2  # NaN, most often


def test_centred_weights_have_no_mean_although_they_are_rounded():
    torch.manual_seed(0)
    w = torch.randn(2 * 208, 208).to(torch.bfloat16)
    actual = centre_weights(w, 208).double()
    exact = w.double().view(2, 208, 208)
    exact = exact - exact.mean(1, keepdim=True)
    rounded = exact.to(torch.bfloat16).double()
    assert actual.sum(1).norm() < 0.3 * rounded.sum(1).norm()
    assert (actual - exact).norm() < 1.5 * (rounded - exact).norm()


@pytest.mark.parametrize(("count", "H"), [(1, 208), (9, 48)])
def test_the_gradient_of_centred_weights_is_the_sum_of_its_parts_without_a_mean(count, H):
    torch.manual_seed(0)
    parts = torch.randn(count, 2, H, H) + 1
    exact = parts.double().sum(0)
    exact = exact - exact.mean(1, keepdim=True)
    actual = centre_gradient(parts, torch.float16)
    assert (actual.double() - exact).norm() < 0.5 * torch.finfo(torch.float16).eps * exact.norm()
