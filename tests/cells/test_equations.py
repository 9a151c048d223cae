"""Cells without an independent reference give the values of their equations, written in NumPy."""

import numpy as np
import pytest
import torch

import seqloom
import seqloom.cells
from seqloom.cells.orthogonal_rnn import exponentiate
from seqloom.core.cell import Cell
from seqloom.core.errors import InputError, UserError

B, T, D, H = 2, 4, 3, 5
EQUATIONS = {}


def equation(name, **settings):
    """Register a function (weights, x (B, D), state) -> (output, state) as the equations of a cell."""

    def register(function):
        EQUATIONS[name] = (function, settings)
        return function

    return register


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def softmax(a, axis):
    e = np.exp(a - a.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def gates(w, x, h):
    """Return the H-wide blocks of W x and of U h."""
    return (
        np.split(x @ w["weight_ih"].T + w["bias_ih"], len(w["bias_ih"]) // H, -1),
        np.split(h @ w["weight_hh"].T + w["bias_hh"], len(w["bias_hh"]) // H, -1),
    )


@equation("lem", dt=0.8)
def lem(w, x, state):
    h, z = state
    (xa, xb, xz, xh), (ua, ub, uz) = gates(w, x, h)
    a, b = 0.8 * sigmoid(xa + ua), 0.8 * sigmoid(xb + ub)
    z = (1 - a) * z + a * np.tanh(xz + uz)
    h = (1 - b) * h + b * np.tanh(xh + z @ w["weight_zh"].T + w["bias_zh"])
    return h, (h, z)


@equation("nas")
def nas(w, x, state):
    h, c = state
    xs, us = gates(w, x, h)
    a = [s + t for s, t in zip(xs, us, strict=True)]
    a[3] = xs[3] * us[3]
    p = np.tanh(np.tanh(sigmoid(a[0]) * np.maximum(a[1], 0)) + c)
    q = np.tanh(sigmoid(a[2]) + np.maximum(a[3], 0))
    c = p * q
    r = np.tanh(np.tanh(a[4]) * sigmoid(a[5])) + sigmoid(np.tanh(a[6]) + sigmoid(a[7]))
    h = np.tanh(c * np.tanh(r))
    return h, (h, c)


@equation("scrn", alpha=0.9)
def scrn(w, x, state):
    h, s = state
    (b, a), (r,) = gates(w, x, h)
    s = 0.1 * b + 0.9 * s
    h = sigmoid(a + r + s @ w["weight_sh"].T)
    return np.tanh(h @ w["weight_hy"].T + w["bias_y"] + s @ w["weight_sy"].T), (h, s)


@equation("slstm")
def slstm(w, x, state):
    """Without the stabiliser, which must not change h: c and n times exp(m)."""
    h, c, n, m = state
    (xi, xf, xz, xo), (ui, uf, uz, uo) = gates(w, x, h)
    c, n = c * np.exp(m), n * np.exp(m)
    c = sigmoid(xf + uf) * c + np.exp(xi + ui) * np.tanh(xz + uz)
    n = sigmoid(xf + uf) * n + np.exp(xi + ui)
    h = sigmoid(xo + uo) * c / n
    return h, (h, c, n, np.zeros_like(m))


@equation("mogrifier_lstm", rounds=3)
def mogrifier_lstm(w, x, state):
    h, c = state
    x = 2 * sigmoid(h @ w["weight_1"].T) * x
    h = 2 * sigmoid(x @ w["weight_2"].T) * h
    x = 2 * sigmoid(h @ w["weight_3"].T) * x
    (xi, xf, xg, xo), (ui, uf, ug, uo) = gates(w, x, h)
    c = sigmoid(xf + uf) * c + sigmoid(xi + ui) * np.tanh(xg + ug)
    h = sigmoid(xo + uo) * np.tanh(c)
    return h, (h, c)


@equation("cfc")
def cfc(w, x, state):
    (h,) = state
    (a,), (u,) = gates(w, x, h)
    b = 1.7159 * np.tanh(0.666 * (a + u))
    p, q, ta, tb = np.split(b @ w["weight_b"].T + w["bias_b"], 4, -1)
    s = sigmoid(ta + tb)
    h = (1 - s) * np.tanh(p) + s * np.tanh(q)
    return h, (h,)


@equation("ltc", substeps=3)
def ltc(w, x, state):
    (h,) = state
    for _ in range(3):
        (a,), (u,) = gates(w, x, h)
        f = sigmoid(a + u)
        h = (h + f * w["scale_A"] / 3) / (1 + (1 / np.log1p(np.exp(w["scale_t"])) + f) / 3)
    return h, (h,)


@equation("orthogonal_rnn")
def orthogonal_rnn(w, x, state):
    (h,) = state
    skew = torch.from_numpy(w["weight_hh"] - w["weight_hh"].T)
    a = x @ w["weight_ih"].T + w["bias_ih"] + h @ torch.linalg.matrix_exp(skew).numpy().T
    h = np.sign(a) * np.maximum(np.abs(a) + w["bias_b"], 0)
    return h, (h,)


@equation("rhn", depth=2)
def rhn(w, x, state):
    (h,) = state
    (xn, xt), (un, ut) = gates(w, x, h)
    t = sigmoid(xt + ut)
    h = t * np.tanh(xn + un) + (1 - t) * h
    n, t = np.split(h @ w["weight_ss"].T + w["bias_ss"], 2, -1)
    h = sigmoid(t) * np.tanh(n) + (1 - sigmoid(t)) * h
    return h, (h,)


@equation("sru")
def sru(w, x, state):
    _, c = state
    n, xf, xr = np.split(x @ w["weight_ih"].T, 3, -1)
    (bf, br), (vf, vr) = np.split(w["bias_ih"], 2), np.split(w["scale_c"], 2)
    f, r = sigmoid(xf + bf + vf * c), sigmoid(xr + br + vr * c)
    c = f * c + (1 - f) * n
    h = r * c + (1 - r) * (x @ w["weight_s"].T)
    return h, (h, c)


@equation("qrnn")
def qrnn(w, x, state):
    _, c, p = state
    z, f, o = np.split(x @ w["weight_ih"].T + w["bias_ih"] + p, 3, -1)
    c = sigmoid(f) * c + (1 - sigmoid(f)) * np.tanh(z)
    h = sigmoid(o) * c
    return h, (h, c, x @ w["weight_ph"].T)


@equation("mass_lstm", mass_size=2)
def mass_lstm(w, x, state):
    _, c = state
    total = c.sum(-1, keepdims=True)
    a = np.divide(c, total, out=np.zeros_like(c), where=total > 0)
    i, o = np.split(x @ w["weight_ih"].T + w["bias_ih"] + a @ w["weight_hh"].T, 2, -1)
    t = c @ softmax(w["weight_r"], 0).T + softmax(i, -1) * x[:, :2].sum(-1, keepdims=True)
    return sigmoid(o) * t, (sigmoid(o) * t, (1 - sigmoid(o)) * t)


@equation("m2rnn", keys=3)
def m2rnn(w, x, state):
    _, M = state
    k, q, v, f = np.split(x @ w["weight_ih"].T + w["bias_ih"], (3, 6, 6 + H), -1)
    f = sigmoid(f)[:, :, None]
    M = f * M + (1 - f) * np.tanh(M @ w["weight_hh"].T + k[:, :, None] * v[:, None])
    h = np.einsum("bk,bkh->bh", q, M)
    return h, (h, M)


@pytest.mark.every_cell
@pytest.mark.parametrize("name", EQUATIONS)
def test_a_cell_gives_the_values_of_its_equations(name):
    function, settings = EQUATIONS[name]
    cell = Cell.registry[name](D, H, dtype=torch.float64, **settings)
    for p in cell.parameters():
        torch.nn.init.uniform_(p, -0.7, 0.7)
    weights = {n: p.detach().numpy() for n, p in cell.named_parameters()}
    x = torch.rand(B, T, D, dtype=torch.float64)  # not negative, as a mass must be
    with torch.no_grad():
        y, _ = seqloom.scan(cell, x, kernel="loop")
    state = tuple(s.numpy() for s in cell.initial_state(x))
    for t in range(T):
        expected, state = function(weights, x[:, t].numpy(), state)
        np.testing.assert_allclose(y[:, t].numpy(), expected, rtol=1e-10, atol=1e-10)


def test_every_cell_has_a_reference():
    """A new cell needs a line here, or in the comparison with a library."""
    torchs = {"rnn", "gru", "lstm"}  # compared with torch.nn in test_drop_in.py
    own = {"attn_rnn", "indrnn", "ln_gru", "ln_lstm", "min_gru", "min_lstm", "ntm", "ode_gru", "rnn_attention"}
    from test_torchrecurrent import CELLS

    ours = {name for name, kind in Cell.registry.items() if kind.__module__.startswith("seqloom.cells.")}
    assert ours - set(CELLS) - torchs - own == set(EQUATIONS)


def test_cfc_gives_the_results_of_ncps_with_time_spans():
    module = pytest.importorskip("ncps.torch.cfc_cell", reason="ncps is not installed")
    cell = Cell.registry["cfc"](D, H, dtype=torch.float64)
    other = module.CfCCell(D, H, backbone_units=H).double()
    with torch.no_grad():
        other.backbone[0].weight.copy_(torch.cat([cell.weight_ih, cell.weight_hh], 1))
        other.backbone[0].bias.copy_(cell.bias_ih + cell.bias_hh)
        for part, w, b in zip(
            ("ff1", "ff2", "time_a", "time_b"), cell.weight_b.chunk(4), cell.bias_b.chunk(4), strict=True
        ):
            getattr(other, part).weight.copy_(w)
            getattr(other, part).bias.copy_(b)
    x, h, dt = (torch.rand(*s, dtype=torch.float64) for s in ((B, D), (B, H), (B,)))
    y, _ = cell.step(cell.project(x), (h,), dt=dt)
    torch.testing.assert_close(y, other(x, h, dt.unsqueeze(-1))[0], rtol=1e-12, atol=1e-12)


def test_slstm_gives_the_results_of_xlstm():
    module = pytest.importorskip("xlstm.blocks.slstm.src.vanilla.slstm", reason="xlstm is not installed")
    cell = Cell.registry["slstm"](D, H, dtype=torch.float64)
    x = torch.randn(B, T, D, dtype=torch.float64)
    y, _ = seqloom.scan(cell, x, kernel="loop")
    states = torch.zeros(4, B, H, dtype=torch.float64)
    for t in range(T):
        wx, wh = cell.project(x[:, t]), torch.nn.functional.linear(states[0], cell.weight_hh)
        states, _ = module.slstm_forward_pointwise(wx, wh, cell.bias_hh, states, {})
        torch.testing.assert_close(y[:, t], states[0], rtol=1e-12, atol=1e-12)


def test_slstm_is_finite_for_gates_that_overflow_an_exponential():
    cell = Cell.registry["slstm"](D, H)
    torch.nn.init.constant_(cell.bias_ih, 200.0)
    x = 1e3 * torch.randn(B, T, D)
    y, _ = seqloom.scan(cell, x, kernel="loop")
    assert y.isfinite().all()
    y, _ = seqloom.scan(cell, x - 1e4, kernel="loop")
    assert y.isfinite().all()


def test_the_matrix_of_the_orthogonal_rnn_is_orthogonal_in_every_type():
    P = torch.randn(64, 64) / 8
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)):
        U = torch.eye(64, dtype=torch.float64) + exponentiate((P - P.T).to(dtype)).double()
        torch.testing.assert_close(U @ U.T, torch.eye(64, dtype=torch.float64), rtol=0, atol=tolerance)


def test_the_mass_lstm_conserves_mass():
    cell = Cell.registry["mass_lstm"](D, H, mass_size=2, dtype=torch.float64)
    x = torch.rand(B, 20, D, dtype=torch.float64)
    y, (_, c) = seqloom.scan(cell, x, kernel="loop")
    torch.testing.assert_close(y.sum((1, 2)) + c.sum(-1), x[..., :2].sum((1, 2)))
    assert (y >= 0).all() and (c >= 0).all()


def test_a_negative_mass_is_named():
    layer = seqloom.Recurrent("mass_lstm", D, H, mass_size=2)
    x = torch.rand(T, B, D)
    x[1, 0, 1] = -0.25
    with pytest.raises(InputError, match=r"mass_lstm: the first mass_size=2 features .* got -0\.25"):
        layer(x)
    with pytest.raises(UserError, match=r"mass_size must be between 0 and input_size=3, got 4"):
        seqloom.Recurrent("mass_lstm", D, H, mass_size=4)


def test_the_tau_gru_reads_the_state_of_delay_steps_ago():
    cell = Cell.registry["tau_gru"](D, H, delay=3, dtype=torch.float64)
    x = torch.randn(B, 6, D, dtype=torch.float64)
    y, state = seqloom.scan(cell, x, kernel="loop")
    for age, part in enumerate(state):
        torch.testing.assert_close(part, y[:, -1 - age])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tau_gru", {"delay": 0}, "delay must be at least 1 step, got 0"),
        ("scrn", {"alpha": 1.5}, "alpha must be between 0 and 1, got 1.5"),
        ("lem", {"dt": 0.0}, "dt must be above 0 and at most 1, got 0.0"),
        ("ltc", {"substeps": 0}, "substeps must be at least 1, got 0"),
        ("mogrifier_lstm", {"rounds": -1}, "rounds must be at least 0, got -1"),
        ("rhn", {"depth": 0}, "depth must be at least 1, got 0"),
        ("m2rnn", {"keys": 0}, "keys must be at least 1, got 0"),
    ],
)
@pytest.mark.every_cell
def test_a_setting_out_of_range_is_named(name, settings, message):
    with pytest.raises(UserError, match=message):
        seqloom.Recurrent(name, D, H, **settings)


@torch.no_grad()
def test_a_high_bias_of_the_remembering_gate_keeps_the_state():
    """Without an input, `remember(12)` changes the state less than `remember(-12)`."""
    x = torch.zeros(1, 1, D, dtype=torch.float64)

    def change(cell, bias):
        cell.remember(torch.full((8,), bias, dtype=torch.float64))
        state = tuple(torch.full_like(s, 0.3) for s in cell.initial_state(x[:, 0]))
        after = cell.step(cell.project(x)[:, 0], state)[1]
        return sum(float((a - b).abs().sum()) for a, b in zip(after, state, strict=True))

    wrong, without = [], []
    for name, kind in Cell.registry.items():
        cell = kind(D, 8, dtype=torch.float64)
        if kind.__module__.startswith("seqloom.cells."):
            try:
                if not change(cell, 12.0) < change(cell, -12.0):
                    wrong.append(name)
            except UserError:
                without.append(name)
    assert not wrong
    assert {"rnn", "cornn", "antisymmetric_rnn"} <= set(without) and len(without) < 25
