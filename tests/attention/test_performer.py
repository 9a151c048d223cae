import math

import pytest
import torch
import torch.nn.functional as F

from seqloom.attention import Attention, PerformerAttention
from seqloom.attention.features import Positive, Random, Trigonometric


def error(kind, count, causal=False, draws=40):
    """Return the mean distance of a Performer's output from exact attention with the same weights."""
    torch.manual_seed(1)
    exact = Attention(16, 2, causal=causal).double()
    x = 0.5 * torch.randn(2, 12, 16, dtype=torch.float64)  # larger inputs need more features before the law holds
    y, _ = exact(x)
    distances = []
    for _ in range(draws):
        layer = PerformerAttention(16, 2, features=count, kind=kind, causal=causal).double()
        layer.load_state_dict(exact.state_dict(), strict=False)
        distances.append((layer(x)[0] - y).norm().item())
    return sum(distances) / draws


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "causal"),
    [
        ("positive", False),
        pytest.param("positive", True, marks=pytest.mark.long),
        pytest.param("trigonometric", False, marks=pytest.mark.long),
    ],
)
def test_the_error_falls_with_the_square_root_of_the_number_of_features(kind, causal):
    counts = [64, 256, 1024, 4096]
    errors = [error(kind, count, causal) for count in counts]
    slope = math.log(errors[-1] / errors[0]) / math.log(counts[-1] / counts[0])
    assert -0.6 < slope < -0.4, errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Positive, Trigonometric])
def test_the_expected_product_of_features_is_the_softmax_kernel(kind):
    q, k = torch.randn(2, 6, 4, dtype=torch.float64) / 2
    phi = kind(4, 200_000).double()
    actual = phi.query(q) @ phi.key(k, causal=True).mT
    exact = torch.exp(q @ k.mT / 2)
    torch.testing.assert_close(actual / actual[:, :1], exact / exact[:, :1], rtol=0.05, atol=0.0)


def test_directions_are_orthogonal_in_blocks_and_of_gaussian_length():
    w = Random(16, 1000).w
    for start in range(0, 992, 16):
        block = w[start : start + 16]
        unit = block / block.norm(dim=1, keepdim=True)
        torch.testing.assert_close(unit @ unit.T, torch.eye(16), atol=1e-5, rtol=0.0)
    assert w.square().sum(1).mean().item() == pytest.approx(16, rel=0.05)
    assert Random(16, 10, orthogonal=False).w.shape == (10, 16)


def test_orthogonal_directions_have_a_smaller_error_than_independent_ones():
    q, k = torch.randn(2, 200, 8, dtype=torch.float64) / 2
    exact = torch.exp((q * k).sum(-1) / math.sqrt(8))

    def miss(orthogonal):
        total = 0.0
        for _ in range(200):
            phi = Trigonometric(8, 8, orthogonal).double()
            scale = torch.exp(q.square().sum(-1) / (2 * math.sqrt(8)))
            total += ((scale * (phi.query(q) * phi.key(k, causal=True)).sum(-1) - exact).square()).mean().item()
        return total

    assert miss(True) < 0.8 * miss(False)


def test_features_are_redrawn_at_the_requested_interval_only():
    layer, x = PerformerAttention(8, 2, features=4, redraw=3), torch.randn(1, 5, 8)
    first = layer.phi.w
    layer(x), layer(x)
    assert layer.phi.w is first
    y, _ = layer(x)
    assert not torch.equal(layer.phi.w, first)
    drawn = layer.phi.w
    layer.eval()
    for _ in range(4):
        layer(x)
    assert layer.phi.w is drawn
    layer.phi.redraw()
    y.sum().backward()  # through results of the old features
    assert "phi.w" in layer.state_dict()


def test_large_keys_and_queries_give_finite_outputs():
    layer = PerformerAttention(16, 2)
    y, _ = layer(100 * torch.randn(2, 9, 16))
    assert torch.isfinite(y).all()


def test_padding_does_not_set_the_scale_of_large_keys():
    layer, x = PerformerAttention(16, 2), 30 * torch.randn(1, 6, 16)
    padded, _ = layer(F.pad(x, (0, 0, 0, 3)), lengths=[6])
    assert layer(x)[0].abs().max() > 1
    torch.testing.assert_close(padded[:, :6], layer(x)[0])


def test_an_unknown_kind_raises_an_error():
    with pytest.raises(ValueError, match="one of positive, trigonometric, got 'relu'"):
        PerformerAttention(8, kind="relu")
