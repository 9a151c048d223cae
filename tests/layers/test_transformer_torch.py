"""Torch's Transformer layers, with their weights copied in."""

import pytest
import torch
from torch import nn

from seqloom.layers.transformer.convert import from_torch

B, T, S, D = 3, 7, 5, 16
SETTINGS = [
    {},
    {"norm_first": True},
    {"activation": "gelu", "norm_first": True, "bias": False, "layer_norm_eps": 1e-3},
]


def shaken(module):
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)
    return module.double().eval()


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def same(mine, exact, inputs):
    torch.testing.assert_close(mine, exact)
    g = torch.randn_like(exact)
    torch.testing.assert_close(torch.autograd.grad(mine, inputs, g), torch.autograd.grad(exact, inputs, g))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("whole", [False, True])
def test_an_encoder_is_torchs(settings, whole):
    module = nn.TransformerEncoderLayer(D, 4, 24, batch_first=True, **settings)
    if whole:
        module = nn.TransformerEncoder(module, 2, nn.LayerNorm(D), enable_nested_tensor=False)
    shaken(module)
    mine, x, lengths = from_torch(module), random(B, T, D), torch.tensor([7, 2, 5])
    same(mine(x)[0], module(x), x)
    real = torch.arange(T) < lengths.unsqueeze(1)
    exact = module(x, src_key_padding_mask=~real) * real.unsqueeze(-1)
    same(mine(x, lengths=lengths)[0], exact, x)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_decoder_is_torchs(settings, whole):
    module = nn.TransformerDecoderLayer(D, 4, 24, batch_first=True, **settings)
    module = shaken(nn.TransformerDecoder(module, 2) if whole else module)
    mine, x, memory = from_torch(module), random(B, T, D), random(B, S, D)
    lengths = torch.tensor([5, 1, 3])
    causal = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    padding = torch.arange(S) >= lengths.unsqueeze(1)
    exact = module(x, memory, tgt_mask=causal, memory_key_padding_mask=padding)
    same(mine(x, memory=memory, memory_lengths=lengths)[0], exact, (x, memory))


def test_a_causal_encoder_is_torchs_with_a_mask():
    module = shaken(nn.TransformerEncoderLayer(D, 4, 24, batch_first=True))
    x = random(B, T, D)
    mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    same(from_torch(module, causal=True)(x)[0], module(x, src_mask=mask), x)


def test_dropout_and_training_are_taken_over():
    mine = from_torch(nn.TransformerEncoderLayer(D, 4, dropout=0.3).train())
    assert mine.training and mine.layer_at(0).block.dropout == 0.3


def test_layers_without_a_counterpart_are_named():
    with pytest.raises(TypeError, match="got Linear"):
        from_torch(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="relu or gelu"):
        from_torch(nn.TransformerEncoderLayer(D, 4, activation=torch.tanh))
