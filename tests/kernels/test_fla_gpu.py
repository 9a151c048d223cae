"""flash-linear-attention behind the dispatch, against the definition in float64. Run by `make test-gpu`."""

import pytest
import torch
import torch.nn.functional as F

import seqloom
from seqloom.kernels.linear.dispatch import run_linear
from seqloom.kernels.linear.job import make_job

pytestmark = pytest.mark.gpu
HEADS, SIZE = 2, 64
ROUNDED = 0.02  # of the norm: products in bfloat16, 8 bits


@pytest.fixture(autouse=True)
def _installed():
    pytest.importorskip("fla")


def draw(form, T=150):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, T, HEADS, SIZE, device="cuda") for _ in range(3))
    parts = {"q": q * SIZE**-0.5, "k": F.normalize(k, dim=-1), "v": v}
    parts = {name: t.bfloat16() for name, t in parts.items()}
    if form != "delta":
        parts["decay"] = -0.1 * torch.rand(2, T, HEADS, SIZE if form == "channel" else 1, device="cuda")
    if "delta" in form:
        parts["beta"] = 2 * torch.rand(2, T, HEADS, device="cuda")  # to 2: negative eigenvalues
    return parts | {"state": torch.randn(2, HEADS, SIZE, SIZE, device="cuda")}


def run(parts, kernel, dtype, settings):
    leaves = {name: t.detach().to(dtype or t.dtype).requires_grad_() for name, t in parts.items()}
    y, state = run_linear(make_job(**leaves, **settings), kernel)
    if "lengths" in settings:
        lengths = settings["lengths"]
        y = y * (torch.arange(y.shape[1], device="cuda") < lengths[:, None])[..., None, None]
    gradients = torch.autograd.grad(y.float().square().sum() + state.float().sin().sum(), list(leaves.values()))
    return {"y": y, "state": state} | dict(zip(leaves, gradients, strict=True))


@pytest.mark.parametrize("flags", ["", "lengths", "resets"])
@pytest.mark.parametrize("form", ["gated_delta", "delta", "scalar", "channel"])
def test_fla_gives_what_the_definition_gives_in_both_passes(form, flags):
    settings = {}
    if flags == "lengths":
        settings["lengths"] = torch.tensor([150, 77], device="cuda")
    if flags == "resets":
        settings["reset"] = torch.zeros(2, 150, dtype=torch.bool, device="cuda")
        settings["reset"][:, [3, 70, 71, 128]] = True
    parts = draw(form)
    exact, rounded = run(parts, "recurrent", torch.float64, settings), run(parts, "fla", None, settings)
    for name, t in exact.items():
        assert (rounded[name].double() - t).norm() < ROUNDED * t.norm(), name


def test_a_layer_in_bfloat16_gives_what_it_gives_on_the_chunks():
    torch.manual_seed(0)
    layer = seqloom.GatedDeltaNet(128, heads=2, kernel="fla").cuda().bfloat16()
    x = torch.randn(2, 100, 128, device="cuda", dtype=torch.bfloat16)
    y, state = layer(x)
    layer.kernel = "chunk"
    exact, end = layer(x)
    assert (y - exact).float().norm() < ROUNDED * exact.float().norm()
    assert (state[1] - end[1]).norm() < ROUNDED * end[1].norm()


def test_auto_takes_fla_and_explain_says_so():
    layer = seqloom.GatedDeltaNet(128, heads=2).cuda().bfloat16()
    x = torch.randn(2, 100, 128, device="cuda", dtype=torch.bfloat16)
    assert "fla (flash-linear-attention's Triton kernels" in str(seqloom.explain(layer, x))
    assert "not fla" in str(seqloom.explain(layer.float(), x.float()))
