"""Recording and changing what happens inside a model."""

import pytest
import torch

import seqloom
import seqloom.cells  # fills the registry
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.tools.intervene import Clamp, record


@pytest.mark.parametrize("name", sorted(Cell.registry))
def test_a_recorded_layer_computes_what_the_layer_computes(name):
    layer = seqloom.Recurrent(name, 8, 8, num_layers=2, bidirectional=True, batch_first=True).eval()
    x, lengths = torch.randn(3, 5, 8), torch.tensor([5, 3, 1])
    expected = layer(x, lengths=lengths)[0]
    with record(layer) as recording:
        actual = layer(x, lengths=lengths)[0]
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)
    assert list(recording.layers) == ["l0", "l0_reverse", "l1", "l1_reverse"]
    assert set(recording.layers["l0"].gates) == set(seqloom.trace(layer, x, lengths=lengths).layers["l0"].gates)


def test_the_layer_is_as_before_after_a_recording():
    layer = seqloom.GRU(4, 8, batch_first=True).eval()
    x = torch.randn(2, 5, 4)
    expected = layer(x)[0]
    with record(layer, [Clamp("l0", "z", 1.0)]):
        assert not torch.equal(layer(x)[0], expected)
    assert torch.equal(layer(x)[0], expected)
    assert "forward" not in layer.__dict__


def test_a_clamp_holds_the_chosen_units_at_the_chosen_steps_only():
    layer = seqloom.LSTM(4, 8, batch_first=True, bidirectional=True).eval()
    x = torch.randn(2, 6, 4)
    for name in ("l0", "l0_reverse"):
        with record(layer, [Clamp(name, "f", 0.25, (2, 5), (1, 3))]) as recording:
            layer(x)
        f = recording.layers[name].gates["f"].detach()
        assert (f[:, 1:4][..., [2, 5]] == 0.25).all()
        assert (f[:, [0, 4, 5]] != 0.25).all()
        assert (f[..., [0, 1, 3, 4, 6, 7]] != 0.25).all()


def test_other_gates_follow_a_clamped_reset_gate():
    layer = seqloom.GRU(4, 8, batch_first=True).eval()
    x = torch.randn(2, 5, 4)
    with record(layer, [Clamp("l0", "r", 0.3)]) as recording:
        layer(x)
    gates, h = recording.layers["l0"].gates, recording.layers["l0"].states[0]
    before = torch.cat([torch.zeros(2, 1, 8), h[:, :-1]], 1)
    x_n = torch.nn.functional.linear(x, layer.weight_ih_l0[16:], layer.bias_ih_l0[16:])
    h_n = torch.nn.functional.linear(before, layer.weight_hh_l0[16:], layer.bias_hh_l0[16:])
    torch.testing.assert_close(gates["n"], torch.tanh(x_n + 0.3 * h_n))


@pytest.mark.parametrize(
    ("clamp", "message"),
    [
        (Clamp("l0", "q", 1.0), "no 'q' to clamp; its letters are r, z, n, h"),
        (Clamp("l7", "z", 1.0), "no layer 'l7' to clamp; the model has l0"),
        (Clamp("l0", "z", 1.0, (9,)), "unit 9 does not exist"),
        (Clamp("l0", "r", 1.5), "cannot be clamped to 1.5"),
    ],
)
def test_a_clamp_that_does_not_fit_is_explained(clamp, message):
    layer = seqloom.GRU(4, 8, batch_first=True).eval()
    with pytest.raises(UserError, match=message), record(layer, [clamp]):
        layer(torch.randn(1, 3, 4))


@pytest.mark.parametrize("letter", ["a", "o"])
def test_a_gate_from_which_others_follow_is_refused_if_they_cannot_be_repeated(letter):
    layer = seqloom.AttnRNN(8, 8, batch_first=True).eval()
    clamp = Clamp("l0", letter, 0.5)
    with pytest.raises(UserError, match=f"{letter} of attn_rnn cannot be clamped"), record(layer, [clamp]):
        layer(torch.randn(1, 3, 8))


def test_uniform_attention_gives_all_visible_positions_the_same_weight():
    layer = seqloom.AttnRNN(8, 8, batch_first=True).eval()
    with record(layer, uniform_attention=True) as recording:
        layer(torch.randn(1, 3, 8))
    assert torch.allclose(recording.layers["l0"].gates["a"], torch.tensor(0.25))
    transformer = seqloom.Transformer(8, heads=2, causal=True).eval()
    with record(transformer, uniform_attention=True) as recording:
        transformer(torch.randn(1, 4, 8))
    weights = recording.attention["layers.0.attention"]
    torch.testing.assert_close(weights[0, 0, 3], torch.full((4,), 0.25))
    torch.testing.assert_close(weights[0, 1, 1], torch.tensor([0.5, 0.5, 0.0, 0.0]))


def test_gradients_of_recorded_states_match_differences():
    layer = seqloom.GRU(4, 8, batch_first=True).double().eval()
    x = torch.randn(1, 5, 4, dtype=torch.float64)

    def total(clamps=()):
        with record(layer, clamps) as recording:
            y = layer(x, lengths=torch.tensor([5]))[0]
        return y.square().sum(), recording

    value, recording = total()
    h = recording.states["l0"][2][0]
    (slope,) = torch.autograd.grad(value, h)
    for unit in (0, 5):
        ends = [total([Clamp("l0", "h", h[0, unit].item() + e, (unit,), (2, 2))])[0].item() for e in (1e-5, -1e-5)]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope[0, unit].item(), rel=1e-5, abs=1e-8)
