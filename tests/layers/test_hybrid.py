import pytest
import torch
import torch.nn.functional as F

from seqloom.layers.hybrid import ConvRNN, Hybrid, RNNThenAttention


def test_a_hybrid_mixes_its_three_parts_by_the_softmax_of_its_weights():
    layer, x = Hybrid(3, 8).double(), torch.randn(2, 5, 3, dtype=torch.float64)
    block = layer.blocks[0]
    block.w.data = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    a, b, g = torch.softmax(block.w, 0)
    h = layer.project(x)
    n = block.norm(h)
    conv = F.conv1d(F.pad(n.transpose(1, 2), (2, 0)), block.conv.conv.weight, block.conv.conv.bias).transpose(1, 2)
    y = layer.norm(h + a * torch.relu(conv) + b * block.attention(n)[0] + g * block.rnn(n)[0])
    torch.testing.assert_close(layer(x)[0], y)
    torch.testing.assert_close(layer.shares(), torch.stack([a, b, g]).detach()[None])


def test_the_shares_are_learned():
    layer = Hybrid(3, 8)
    layer(torch.randn(2, 5, 3))[0].square().sum().backward()
    gradient = layer.blocks[0].w.grad
    assert gradient.abs().min() > 0
    torch.testing.assert_close(gradient.sum(), torch.tensor(0.0), atol=1e-5, rtol=0)  # shares add up to 1


def test_conv_rnn_is_a_convolution_then_a_recurrence():
    layer, x = ConvRNN(3, 4, kernel_size=4, cell="lstm").double(), torch.randn(2, 5, 3, dtype=torch.float64)
    c = F.conv1d(F.pad(x.transpose(1, 2), (3, 0)), layer.conv.conv.weight, layer.conv.conv.bias)
    torch.testing.assert_close(layer(x)[0], layer.rnn(torch.relu(c).transpose(1, 2))[0])


def test_rnn_attend_is_a_recurrence_then_attention():
    layer, x = RNNThenAttention(3, 8).double(), torch.randn(2, 5, 3, dtype=torch.float64)
    h, _ = layer.rnn(x)
    torch.testing.assert_close(layer(x)[0], layer.norm(h + layer.attention(h)[0]))


BOTH_WAYS = [
    lambda: Hybrid(3, 8, num_layers=2, causal=False),
    lambda: ConvRNN(3, 8, kernel_size=4, bidirectional=True),
    lambda: RNNThenAttention(3, 8, causal=False),
]


@pytest.mark.parametrize("make", BOTH_WAYS)
def test_a_layer_that_reads_both_ways_sees_the_future_and_has_no_step(make):
    layer = make().double()
    x = torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True)
    y, state = layer(x)
    (gradient,) = torch.autograd.grad(y[0, 0].square().sum(), x)
    assert gradient[0, 4].any() and state is None
    with pytest.raises(ValueError, match="both ways"):
        layer.step(x[:, 0])
    with pytest.raises(ValueError, match="takes none"):
        layer(x, (x,))


@pytest.mark.parametrize("make", BOTH_WAYS)
def test_padding_does_not_affect_a_layer_that_reads_both_ways(make):
    layer, x = make().double(), torch.randn(2, 6, 3, dtype=torch.float64)
    x[1, 4:] = 1e3
    y, _ = layer(x, lengths=[6, 4])
    torch.testing.assert_close(y[1:, :4], layer(x[1:, :4])[0])
    assert not y[1, 4:].any()


@pytest.mark.parametrize("make", [lambda: Hybrid(3, 8, num_layers=2, cell="lstm"), lambda: ConvRNN(3, 8, num_layers=2)])
def test_rows_of_the_state_can_be_selected_and_repeated(make):
    layer, x = make().double(), torch.randn(3, 5, 3, dtype=torch.float64)
    _, state = layer(x[:, :4])
    rows = torch.tensor([2, 0, 0])
    y, _ = layer.step(x[rows, 4], layer.select(state, rows))
    torch.testing.assert_close(y, layer(x)[0][rows, 4])


def test_dropout_acts_only_in_training():
    x = torch.randn(2, 6, 3)
    for layer in (Hybrid(3, 8, dropout=0.5), ConvRNN(3, 8, dropout=0.5), RNNThenAttention(3, 8, dropout=0.5)):
        assert not torch.equal(layer(x)[0], layer(x)[0])
        layer.eval()
        assert torch.equal(layer(x)[0], layer(x)[0])


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="even hidden_size"):
        RNNThenAttention(3, 9, heads=3, causal=False)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        Hybrid(3, 8, num_layers=0)
