"""Units divided into heads, and norms between layers."""

import copy

import pytest
import torch

import seqloom
from seqloom.core.heads import HeadsCell


def take_head(layer, k, heads):
    """Return a layer of one head, with its weights."""
    one = seqloom.Recurrent(layer.cells[0].one.name, layer.input_size, layer.hidden_size // heads, batch_first=True)
    one.load_state_dict({name: p[k] for name, p in layer.state_dict().items()})
    return one


@pytest.mark.parametrize("cell", ["gru", "lstm", "ln_gru", "min_gru"])
def test_heads_are_cells_side_by_side(cell):
    layer, x = seqloom.Recurrent(cell, 5, 12, batch_first=True, heads=3), torch.randn(4, 7, 5)
    reset = torch.rand(4, 7) < 0.3
    y, _ = layer(x, lengths=[7, 0, 3, 6], reset=reset)
    parts = [take_head(layer, k, 3)(x, lengths=[7, 0, 3, 6], reset=reset)[0] for k in range(3)]
    torch.testing.assert_close(y, torch.cat(parts, -1))


def test_a_gru_with_heads_is_a_gru_with_block_diagonal_weights():
    layer, whole = seqloom.GRU(5, 12, heads=3), torch.nn.GRU(5, 12)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            gates = p.unflatten(1, (3, 4)).transpose(0, 1)  # gate, head, unit, ..
            if name == "weight_hh_l0":
                blocks = [torch.block_diag(*gate) for gate in gates]
                getattr(whole, name).copy_(torch.cat(blocks))
            else:
                getattr(whole, name).copy_(gates.flatten(0, 2))
    x = torch.randn(6, 3, 5)
    torch.testing.assert_close(layer(x), whole(x))


def test_streams_copies_and_learned_states_work_with_heads():
    layer = seqloom.LSTM(5, 12, 2, batch_first=True, heads=2, learn_initial_state=True, bidirectional=False).eval()
    layer.cells[0].initial_0.data.normal_()
    x, state, outputs = torch.randn(3, 6, 5), None, []
    with torch.no_grad():
        for t in range(6):
            y, state = layer.step(x[:, t], state)
            outputs.append(y)
        torch.testing.assert_close(torch.stack(outputs, 1), copy.deepcopy(layer)(x)[0])
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
        assert not torch.allclose(torch.stack(outputs, 1), layer(x)[0])


def test_every_head_starts_differently_and_restarts():
    layer = seqloom.GRU(5, 12, heads=3, init=seqloom.Init(chrono=20))
    first, second, _ = layer.weight_hh_l0
    assert not torch.equal(first, second)
    before = layer.weight_hh_l0.clone()
    layer.reset_parameters()
    assert not torch.equal(before, layer.weight_hh_l0)


def test_explain_says_how_the_heads_run():
    layer = seqloom.GRU(5, 12, heads=3)
    assert "heads_each" in str(seqloom.explain(layer, torch.randn(4, 2, 5)))


def test_a_mistake_is_named():
    with pytest.raises(ValueError, match=r"got hidden_size=12 and heads=5; take heads=1, 2, 3, 4, 6 or 12, "):
        seqloom.GRU(5, 12, heads=5)
    with pytest.raises(ValueError, match=r"or hidden_size=30 or 35$"):
        seqloom.GRU(5, 32, heads=5)
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        seqloom.GRU(5, 12, heads=0)
    with pytest.raises(ValueError, match="cell 'ntm' cannot have heads: its state is more than one vector"):
        seqloom.Recurrent("ntm", 5, 12, heads=2)
    with pytest.raises(ValueError, match="stack_norm must be 'rms', 'layer', 'batch' or None, got 'group'"):
        seqloom.GRU(5, 12, 2, stack_norm="group")
    assert not isinstance(seqloom.AttnRNN(5, 12, heads=2).cells[0], HeadsCell)  # it has heads of its own


@pytest.mark.parametrize("norm", ["rms", "layer", "batch"])
def test_a_norm_stands_between_layers(norm):
    layer = seqloom.GRU(5, 8, 2, batch_first=True, stack_norm=norm, residual=True)
    lower, upper = seqloom.GRU(5, 8, batch_first=True), seqloom.GRU(8, 8, batch_first=True)
    for k, one in enumerate((lower, upper)):
        one.load_state_dict({n.replace(f"_l{k}", "_l0"): p for n, p in layer.state_dict().items() if f"_l{k}" in n})
    x, lengths = torch.randn(3, 7, 5), torch.tensor([7, 2, 5])
    y, _ = layer(x, lengths=lengths)
    below, _ = lower(x, lengths=lengths)
    if norm == "batch":
        real = torch.arange(7) < lengths.unsqueeze(1)
        normed = torch.zeros_like(below)
        normed[real] = torch.nn.functional.batch_norm(below[real], None, None, training=True)
    elif norm == "layer":
        normed = torch.nn.functional.layer_norm(below, (8,))
    else:
        normed = torch.nn.functional.rms_norm(below, (8,), eps=1e-5)
    expected = upper(normed, lengths=lengths)[0] + below
    torch.testing.assert_close(y, expected)


def test_a_stream_after_batch_norm_uses_the_running_averages():
    layer = seqloom.GRU(5, 8, 2, batch_first=True, stack_norm="batch")
    for _ in range(5):
        layer(torch.randn(4, 6, 5))
    layer.eval()
    x, state, outputs = torch.randn(2, 6, 5), None, []
    assert float(layer.norms[0].mean.abs().sum()) > 0
    with torch.no_grad():
        for t in range(6):
            y, state = layer.step(x[:, t], state)
            outputs.append(y)
        torch.testing.assert_close(torch.stack(outputs, 1), layer(x)[0])
