"""Different ways to write the same cell, in textbooks, in torch and here, agree."""

import pytest
import torch
from torch import nn

import seqloom


class TextLSTM(nn.Module):
    """f = sigmoid(W [h, x] + b), one bias a gate."""

    def __init__(self, d, h):
        super().__init__()
        self.f, self.i, self.g, self.o = (nn.Linear(h + d, h) for _ in range(4))

    def forward(self, x, h, c):
        both = torch.cat([h, x], -1)
        f, i, o = (torch.sigmoid(gate(both)) for gate in (self.f, self.i, self.o))
        c = f * c + i * torch.tanh(self.g(both))
        return o * torch.tanh(c), c


class TextGRU(nn.Module):
    """Reset before the product; z writes: h' = (1 - z) h + z n."""

    def __init__(self, d, h):
        super().__init__()
        self.z, self.r, self.n = (nn.Linear(d + h, h) for _ in range(3))

    def forward(self, x, h):
        both = torch.cat([x, h], -1)
        z, r = torch.sigmoid(self.z(both)), torch.sigmoid(self.r(both))
        n = torch.tanh(self.n(torch.cat([x, r * h], -1)))
        return (1 - z) * h + z * n


def test_the_textbook_lstm_with_one_bias_is_this_lstm():
    text, cell = TextLSTM(3, 5), seqloom.LSTMCell(3, 5)
    with torch.no_grad():
        gates = (text.i, text.f, text.g, text.o)
        cell.weight_hh.copy_(torch.cat([gate.weight[:, :5] for gate in gates]))
        cell.weight_ih.copy_(torch.cat([gate.weight[:, 5:] for gate in gates]))
        cell.bias_ih.copy_(torch.cat([gate.bias for gate in gates]))
        cell.bias_hh.zero_()
    x, h, c = torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 5)
    for ours, theirs in zip(cell(x, (h, c)), text(x, h, c), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_textbook_gru_is_this_gru_with_the_update_gate_negated():
    text, cell = TextGRU(3, 5), seqloom.GRUCell(3, 5, reset_after=False)
    with torch.no_grad():
        for k, (gate, sign) in enumerate([(text.r, 1), (text.z, -1), (text.n, 1)]):
            rows = slice(5 * k, 5 * k + 5)
            cell.weight_ih[rows] = sign * gate.weight[:, :3]
            cell.weight_hh[rows] = sign * gate.weight[:, 3:]
            cell.bias_ih[rows] = sign * gate.bias
        cell.bias_hh.zero_()
    x, h = torch.randn(2, 3), torch.randn(2, 5)
    torch.testing.assert_close(cell(x, h), text(x, h))


def test_the_place_of_the_reset_gate_matters():
    after, before = seqloom.GRUCell(3, 5), seqloom.GRUCell(3, 5, reset_after=False)
    before.load_state_dict(after.state_dict())
    x, h = torch.randn(2, 3), torch.randn(2, 5)
    assert (after(x, h) - before(x, h)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["min_gru", "min_lstm"])
def test_the_parallel_scan_matches_the_loop(name):
    layer = seqloom.Recurrent(name, 3, 6, 2, bidirectional=True, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 37, 3, dtype=torch.float64)
    flags = torch.rand(2, 37) < 0.1
    actual = {}
    for kernel in ("parallel", "loop"):
        layer.kernel = kernel
        actual[kernel] = layer(x, lengths=[37, 20], reset=flags)[0]
    torch.testing.assert_close(actual["parallel"], actual["loop"], rtol=1e-12, atol=1e-12)


def test_layer_norm_makes_the_gates_independent_of_the_scale_of_the_weights():
    cell, gru = seqloom.LNGRUCell(3, 5), seqloom.GRUCell(3, 5)
    x, h = torch.randn(2, 3), torch.randn(2, 5)
    for c, blind in ((cell, True), (gru, False)):
        before = c(x, h)
        with torch.no_grad():
            c.weight_hh.mul_(100.0)
        assert torch.allclose(c(x, h), before, atol=1e-3) == blind


def test_the_flow_of_ode_gru_composes_over_time():
    """Two halves of a time span match the whole, up to the error of the solver."""
    cell = seqloom.ODEGRUCell(2, 4, substeps=512, dtype=torch.float64)
    h = torch.randn(3, 4, dtype=torch.float64)
    half, whole = torch.full((3,), 0.5, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(cell.drift(cell.drift(h, half), half), cell.drift(h, whole), rtol=0, atol=1e-7)


def runge_kutta(flow, h, dt, steps):
    e = dt / steps
    for _ in range(steps):
        k1 = flow(h)
        k2 = flow(h + e / 2 * k1)
        k3 = flow(h + e / 2 * k2)
        k4 = flow(h + e * k3)
        h = h + e / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return h


@pytest.mark.parametrize(("dt", "error"), [(0.1, 1e-5), (1.0, 1e-3), (10.0, 2e-2), (60.0, 5e-3)])
def test_the_flow_of_ode_gru_is_solved_within_the_documented_error(dt, error):
    cell = seqloom.ODEGRUCell(2, 32, dtype=torch.float64)
    h = torch.rand(8, 32, dtype=torch.float64) * 2 - 1
    with torch.no_grad():
        exact = runge_kutta(cell.flow, h, dt, int(200 + 50 * dt))
        off = (cell.drift(h, torch.full((8,), dt, dtype=torch.float64)) - exact).abs().max()
        cell.substeps *= 2
        finer = (cell.drift(h, torch.full((8,), dt, dtype=torch.float64)) - exact).abs().max()
    assert off < error and finer < off / 3


@pytest.mark.parametrize("dt", [0.0, 1e-6, 60.0, 1e4, 1e9])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_state_of_ode_gru_stays_bounded_over_any_gap(dt, scale):
    layer = seqloom.ODEGRU(3, 8, batch_first=True)
    with torch.no_grad():
        layer.weight_flow_l0.mul_(scale)
    x = torch.randn(2, 20, 3, requires_grad=True)
    y, _ = layer(x, timespans=torch.full((2, 20), dt))
    assert y.abs().max() <= 1
    y.sum().backward()
    assert x.grad.isfinite().all() and layer.weight_flow_l0.grad.isfinite().all()


def test_a_learned_initial_state_of_a_turing_machine_keeps_valid_weights():
    layer = seqloom.NTM(3, 8, rows=8, width=4, learn_initial_state=True, batch_first=True)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    x = torch.randn(4, 10, 3)
    for _ in range(30):
        y, _ = layer(x)
        assert y.isfinite().all()
        optimiser.zero_grad()
        (y - 1).square().mean().backward()
        optimiser.step()
    for w in layer.cells[0].start(x)[3:]:
        assert (w >= 0).all()
        torch.testing.assert_close(w.sum(-1), torch.ones(4))


def test_a_learned_initial_state_of_a_turing_machine_starts_at_the_fixed_one():
    cell = seqloom.NTMCell(3, 8, rows=8, width=4)
    x = torch.zeros(1, 3)
    before = cell.start(x)
    cell.learn_initial_state()
    for a, b in zip(cell.start(x), before, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


def test_the_neural_turing_machine_writes_and_reads_back():
    cell = seqloom.NTMCell(3, 8, rows=8, width=4)
    x = torch.randn(2, 3)
    state = cell.start(x)
    _, after = cell.step(cell.project(x.unsqueeze(1)).squeeze(1), state)
    assert (after[2] - state[2]).abs().max() > 1e-4
    for w in after[3:]:
        torch.testing.assert_close(w.sum(-1), torch.ones(2))
        assert (w >= 0).all()


def test_rnn_attention_forgets_outputs_older_than_its_window():
    layer = seqloom.RNNAttention(2, 4, window=3, batch_first=True)
    attention = seqloom.trace(layer, torch.randn(1, 6, 2)).layers["l0"].gates["a"]
    assert attention.shape == (1, 6, 3)
    assert not attention[0, 0].any()
    torch.testing.assert_close(attention[0, 1], torch.tensor([0.0, 0.0, 1.0]))
    torch.testing.assert_close(attention[0, 3:].sum(-1), torch.ones(3))
