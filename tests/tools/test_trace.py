"""What `trace` shows of layers with attention inside, and of layers inside others."""

import pytest
import torch

import seqloom
from seqloom.layers.registry import list_names, make

D, B, T = 8, 3, 6
LINEAR = (
    *("deltanet", "deltaproduct", "gated_deltanet", "gla", "hgrn2", "lru"),
    *("mamba2", "mlstm", "retnet", "rg_lru", "rwkv7", "s5"),
)  # they have neither a cell nor weights of attention


@pytest.mark.parametrize("name", list_names())
def test_every_layer_of_the_registry_can_be_traced(name):
    torch.manual_seed(0)
    layer, x = make(name, D, D).double().eval(), torch.randn(B, T, D, dtype=torch.float64)
    if name.removeprefix("bi_") in ("tcn", *LINEAR):
        with pytest.raises(TypeError, match="with a cell or an attention inside, got a"):
            seqloom.trace(layer, x)
        return
    actual = seqloom.trace(layer, x)
    torch.testing.assert_close(actual.output, layer(x)[0])
    assert actual.layers or actual.attention
    for weights in actual.attention.values():
        assert weights.shape[:1] == (B,) and weights.dim() == 4
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_a_transformer_has_weights_for_every_layer_and_head():
    torch.manual_seed(0)
    actual = seqloom.trace(
        seqloom.Transformer(D, heads=2, num_layers=3, causal=True), torch.randn(B, T, D), lengths=[6, 2, 4]
    )
    assert list(actual.attention) == [f"layers.{i}.attention" for i in range(3)]
    for weights in actual.attention.values():
        assert weights.shape == (B, 2, T, T) and not weights.triu(1).any()
        assert not weights[1, :, 2:].any()  # past the length


def test_a_model_is_traced_by_the_names_of_its_modules():
    model = seqloom.Classify(seqloom.GRU(D, 4, batch_first=True), 3)
    actual = seqloom.trace(model, torch.randn(B, T, D))
    assert list(actual.layers) == ["layer.l0"] and actual.layers["layer.l0"].states[0].shape == (B, T, 4)
    assert actual.output.shape == (B, 3)


def test_a_module_that_is_called_again_has_its_number():
    layer = seqloom.TransformerXL(D, heads=2, num_layers=1, segment=3, memory=3)
    actual = seqloom.trace(layer, torch.randn(B, T, D))
    assert list(actual.attention) == ["inner.layers.0.attention", "inner.layers.0.attention#2"]
    assert actual.attention["inner.layers.0.attention#2"].shape == (B, 2, 3, 6)


def test_an_attention_is_traced_by_itself():
    attention, x = seqloom.Attention(D, heads=2), torch.randn(B, T, D)
    actual = seqloom.trace(attention, x)
    torch.testing.assert_close(actual.output, attention(x)[0])
    torch.testing.assert_close(actual.attention["attention"], attention.weights(x))


def test_hooks_are_gone_afterwards():
    layer = seqloom.Transformer(D, heads=2)
    seqloom.trace(layer, torch.randn(B, T, D))
    assert not any(m._forward_pre_hooks for m in layer.modules())


def test_only_what_is_asked_for_is_kept():
    model = seqloom.Classify(seqloom.GRU(4, 8, num_layers=2, batch_first=True), classes=3).eval()
    x = torch.randn(2, 5, 4)
    assert list(seqloom.trace(model, x, only=["layer.l1"]).layers) == ["layer.l1"]
    assert list(seqloom.trace(model, x, only=["layer"]).layers) == ["layer.l0", "layer.l1"]
    transformer = seqloom.Transformer(8, heads=2, num_layers=3).eval()
    kept = seqloom.trace(transformer, torch.randn(1, 4, 8), only=["layers.1.attention"])
    assert list(kept.attention) == ["layers.1.attention"]
    with pytest.raises(ValueError, match=r"no 'layer\.l9'"):
        seqloom.trace(model, x, only=["layer.l9"])
