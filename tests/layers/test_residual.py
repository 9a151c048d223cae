"""Residuals between stacked recurrent layers."""

import pytest
import torch

import seqloom


@pytest.mark.parametrize("cell", ["gru", "lstm", "attn_rnn", "min_gru"])
@pytest.mark.parametrize("both", [False, True])
def test_every_layer_after_the_first_adds_its_input_to_its_output(cell, both):
    torch.manual_seed(0)
    width = 8 * (1 + both)
    stack = seqloom.Recurrent(cell, 5, 8, 3, batch_first=True, bidirectional=both, residual=True)
    single = [
        seqloom.Recurrent(cell, D, 8, batch_first=True, bidirectional=both) for D in (5, width, width)
    ]  # fmt: skip
    for i, layer in enumerate(single):
        own = {
            name.replace("_l0", f"_l{i}"): name for name, _ in layer.named_parameters()
        }  # the name in the stack: the name in the layer
        layer.load_state_dict({mine: stack.state_dict()[name] for name, mine in own.items()})
    x, lengths = torch.randn(2, 6, 5), torch.tensor([6, 4])
    y, _ = single[0](x, lengths=lengths)
    for layer in single[1:]:
        y = y + layer(y, lengths=lengths)[0]
    torch.testing.assert_close(stack(x, lengths=lengths)[0], y, atol=1e-6, rtol=1e-5)


def test_a_stream_with_residuals_matches_the_whole_sequence():
    layer = seqloom.GRU(5, 8, 2, batch_first=True, residual=True).eval()
    x, state, outputs = torch.randn(2, 6, 5), None, []
    with torch.no_grad():
        for t in range(6):
            y, state = layer.step(x[:, t], state)
            outputs.append(y)
        torch.testing.assert_close(torch.stack(outputs, 1), layer(x)[0])


def test_a_layer_with_residuals_does_not_become_one_of_torch():
    with pytest.raises(ValueError, match="residuals or norms between layers"):
        seqloom.convert(seqloom.GRU(5, 8, 2, residual=True), to="torch")


def test_residuals_are_shown_and_off_by_default():
    assert "residual=True" in repr(seqloom.GRU(5, 8, 2, residual=True))
    assert "residual" not in repr(seqloom.GRU(5, 8, 2))
