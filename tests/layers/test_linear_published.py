"""Weights of published models in linear recurrences; test_linear_parity.py compares the results with the packages."""

import pytest
import torch

import seqloom
from seqloom.core.errors import UserError

MAMBA2 = {
    "in_proj.weight": (42, 8),
    "conv1d.weight": (24, 1, 4),
    "conv1d.bias": (24,),
    "dt_bias": (2,),
    "A_log": (2,),
    "D": (2,),
    "norm.weight": (16,),
    "out_proj.weight": (8, 16),
}
RWKV7 = {
    **{f"x_{letter}": (1, 1, 8) for letter in "rwkvag"},
    **dict.fromkeys(("w0", "a0", "k_k", "k_a"), (1, 1, 8)),
    **dict.fromkeys(("w1", "a1", "g1"), (8, 3)),
    **dict.fromkeys(("w2", "a2", "g2"), (3, 8)),
    **{f"{name}.weight": (8, 8) for name in ("receptance", "key", "value", "output")},
    "r_k": (2, 4),
    "ln_x.weight": (8,),
    "ln_x.bias": (8,),
}


def draw(sizes, prefix=""):
    draw = torch.Generator().manual_seed(0)
    return {prefix + name: torch.randn(size, generator=draw) for name, size in sizes.items()}


def test_every_weight_is_replaced():
    weights = draw(MAMBA2, "layers.0.mixer.") | {"layers.1.mixer.D": torch.zeros(3)}
    layer = seqloom.Mamba2(8, 2, state_channels=4)
    before = {name: p.clone() for name, p in layer.state_dict().items()}
    seqloom.load_published(layer, weights, "layers.0.mixer.")
    assert not any(torch.equal(p, before[name]) for name, p in layer.state_dict().items())
    z, u, dt = weights["layers.0.mixer.in_proj.weight"].split([16, 24, 2])
    assert torch.equal(layer.W_z.weight, z) and torch.equal(layer.W_in.weight, u) and torch.equal(layer.W_dt.weight, dt)


def test_a_larger_rank_changes_no_result():
    layers = [seqloom.RWKV7(8, 2, rank=rank).eval() for rank in (3, 7)]
    for layer in layers:
        seqloom.load_published(layer, draw(RWKV7))
    x = torch.randn(2, 9, 8)
    torch.testing.assert_close(layers[0](x)[0], layers[1](x)[0])


def test_mistakes_are_named_and_change_nothing():
    layer = seqloom.Mamba2(8, 2, state_channels=4)
    before = {name: p.clone() for name, p in layer.state_dict().items()}
    weights = draw(MAMBA2)
    for wrong, message in (
        ({n: w for n, w in weights.items() if n != "D"}, "D is missing"),
        (weights | {"extra": torch.zeros(1)}, "unknown weights: extra"),
        (weights | {"norm.weight": torch.zeros(9)}, r"for norm\.scale has shape \(9,\), expected \(16,\)"),
        (weights | {"in_proj.weight": torch.zeros(50, 8)}, "has 50 rows, expected 42"),
    ):
        with pytest.raises(UserError, match=message):
            seqloom.load_published(layer, wrong)
    with pytest.raises(UserError, match=r"no weight has a name that starts with 'mixer\.'"):
        seqloom.load_published(layer, weights, "mixer.")
    assert all(torch.equal(p, before[name]) for name, p in layer.state_dict().items())
    with pytest.raises(UserError, match="takes Mamba2, RGLRU, RWKV7, got MLSTM"):
        seqloom.load_published(seqloom.MLSTM(8, 2), weights)
    with pytest.raises(UserError, match="v0 to v2 mix values"):
        seqloom.load_published(seqloom.RWKV7(8, 2), draw(RWKV7) | {"v0": torch.zeros(8)})
    with pytest.raises(UserError, match="have rank 3, the layer 2"):
        seqloom.load_published(seqloom.RWKV7(8, 2, rank=2), draw(RWKV7))
