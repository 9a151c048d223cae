"""Weights of published models in linear recurrences; test_linear_parity.py compares the results with the packages."""

import pytest
import torch
import torch.nn.functional as F
from linear_equations import run_mlstm

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
XLSTM = {
    **{f"{name}.weight": (8, 8) for name in ("v", "ogate_preact", "out_proj")},
    **{f"{name}.weight": (4, 8) for name in "qk"},
    **{f"{letter}gate_preact.weight": (2, 8) for letter in "if"},
    **{f"{letter}gate_preact.bias": (2,) for letter in "if"},
    "multihead_norm.weight": (8,),
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
    layers = [seqloom.RWKV7(8, 2, rank=rank).double().eval() for rank in (3, 7)]
    for layer in layers:
        seqloom.load_published(layer, draw(RWKV7))
    x = torch.randn(2, 9, 8, dtype=torch.double)
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
    with pytest.raises(UserError, match="takes MLSTM, Mamba2, RGLRU, RWKV7, got GLA"):
        seqloom.load_published(seqloom.GLA(8, 2), weights)
    with pytest.raises(UserError, match=r"make the layer with MLSTM\(\.\.\., capped=True\)"):
        seqloom.load_published(seqloom.MLSTM(8, 2), weights)
    with pytest.raises(UserError, match="v0 to v2 mix values"):
        seqloom.load_published(seqloom.RWKV7(8, 2), draw(RWKV7) | {"v0": torch.zeros(8)})
    with pytest.raises(UserError, match="have rank 3, the layer 2"):
        seqloom.load_published(seqloom.RWKV7(8, 2, rank=2), draw(RWKV7))


def test_xlstm_weights_give_the_equations_of_xlstm_7b():
    w = {name: t.double() for name, t in draw(XLSTM).items()}
    layer = seqloom.MLSTM(8, 2, key_size=2, capped=True).double()
    seqloom.load_published(layer, w)
    x = torch.randn(2, 9, 8, dtype=torch.double)
    q, k, v = (F.linear(x, w[f"{name}.weight"]).unflatten(-1, (2, -1)) for name in "qkv")
    gates = [F.linear(x, w[f"{z}gate_preact.weight"], w[f"{z}gate_preact.bias"]) for z in "if"]
    h = run_mlstm(q, k * 2**-0.5, v, *(15 * torch.tanh(z / 15) for z in gates))
    normed = F.layer_norm(h, (4,), eps=1e-6).flatten(2) * w["multihead_norm.weight"]
    expected = F.linear(torch.sigmoid(F.linear(x, w["ogate_preact.weight"])) * normed, w["out_proj.weight"])
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-10, atol=1e-10)
    state = None
    for t in range(9):
        y, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y, expected[:, t], rtol=1e-9, atol=1e-9)


def test_fused_xlstm_weights_are_the_single_ones():
    w = draw(XLSTM)
    gates = {kind: torch.cat([w.pop(f"{z}gate_preact.{kind}") for z in "if"]) for kind in ("weight", "bias")}
    joined = torch.cat([w.pop(f"{name}.weight") for name in ("q", "k", "v", "ogate_preact")])
    fused = w | {"qkv_opreact.weight": joined} | {f"ifgate_preact.{kind}": t for kind, t in gates.items()}
    layers = [seqloom.MLSTM(8, 2, key_size=2, capped=True) for _ in range(2)]
    seqloom.load_published(layers[0], draw(XLSTM))
    seqloom.load_published(layers[1], fused)
    assert all(torch.equal(a, b) for a, b in zip(*(layer.state_dict().values() for layer in layers), strict=True))
    with pytest.raises(UserError, match=r"qkv_opreact\.weight has 24 rows, expected 32 = 2 x 8 \+ 2 x 8"):
        seqloom.load_published(seqloom.MLSTM(8, 2, capped=True), fused)
