"""Layers of linear recurrences: their equations, three ways to run, resets, blocks and stacks."""

import linear_equations
import pytest
import torch

import seqloom
from seqloom.core.errors import DtypeError, InputError, UserError
from seqloom.kernels.linear import flash
from seqloom.kernels.linear.job import make_job
from seqloom.layers.linear import rg_lru
from seqloom.layers.linear.layer import LinearMixer, Mixer
from seqloom.tools.testing import check_layer

D, HEADS, B, T = 8, 2, 3, 21
NAMES = list(Mixer.registry)


def make(name, **settings):
    torch.manual_seed(0)
    return Mixer.registry[name](D, HEADS, **settings).double().eval()


@pytest.fixture
def x():
    return torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_there_are_twelve():
    assert {"retnet", "gla", "hgrn2", "mamba2", "rg_lru", "lru", "s5", "deltanet", "gated_deltanet"} < set(NAMES)
    assert {"deltaproduct", "mlstm", "rwkv7"} < set(NAMES) and len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_keeps_the_promises_of_a_layer(name):
    check_layer(lambda: Mixer.registry[name](D, HEADS))


@pytest.mark.parametrize("name", NAMES)
def test_chunks_steps_and_the_engine_agree(name, x):
    layer = make(name)
    expected, end = layer(x)  # with gradients: chunks, or the scan
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[0], expected)  # the engine
        state, outputs = None, []
        for t in range(T):
            y, state = layer.step(x[:, t], state)
            outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), expected)
    for a, b in zip(state, end, strict=True):
        torch.testing.assert_close(a, b)
    if isinstance(layer, LinearMixer):
        layer.kernel = "recurrent"
        torch.testing.assert_close(layer(x)[0], expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_starts_a_new_sequence(name, x):
    layer, reset = make(name), torch.zeros(B, T, dtype=torch.bool)
    reset[0, 7], reset[1, [3, 4, 19]], reset[2, 0] = True, True, True
    lengths = torch.tensor([21, 20, 12])
    state = layer(torch.randn(B, 3, D, dtype=torch.float64))[1]
    y, end = layer(x, state, lengths, reset=reset)
    follow, _ = layer(x[:, :2], end)
    for row, starts in enumerate(([0, 7], [0, 3, 4, 19], [0])):
        stops = [*starts[1:], int(lengths[row])]
        before = None if reset[row, 0] else layer.select(state, torch.tensor([row]))
        for start, stop in zip(starts, stops, strict=True):
            alone, before = layer(x[row : row + 1, start:stop], before if start == 0 else None)
            torch.testing.assert_close(y[row, start:stop], alone[0])
        torch.testing.assert_close(follow[row], layer(x[row : row + 1, :2], before)[0][0])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_with_empty_rows_and_resets(name, x):
    layer = make(name)
    reset = torch.rand(B, T) < 0.2
    leaf = x.clone().requires_grad_()
    y, _ = layer(leaf, lengths=torch.tensor([T, 0, 5]), reset=reset)
    y.square().sum().backward()
    assert torch.isfinite(leaf.grad).all() and not leaf.grad[1].any() and not leaf.grad[2, 5:].any()
    missing = [n for n, p in layer.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not missing


def states(layer, v_size=None):
    return torch.zeros(B, layer.heads, layer.key_size, v_size or layer.value_size, dtype=torch.float64)


def pieces(layer, x):
    """Return the terms of a recurrence and its outputs before the layer finishes them."""
    u = layer.project(x)
    if layer.conv is not None:
        u, _ = layer.conv(u, None, None, None)
    kept = {}
    layer.finish, original = lambda y, *_: kept.setdefault("y", y).flatten(2)[..., :1], layer.finish
    layer.mix(x, None, None, None)
    layer.finish = original
    return layer.terms(x, u), kept["y"]


def test_gla_follows_its_equations(x):
    layer = make("gla", key_size=3)
    t, y = pieces(layer, x)
    torch.testing.assert_close(y, linear_equations.run_gla(t.q, t.k, t.v, t.decay.exp(), states(layer))[0])


def test_hgrn2_follows_its_equations(x):
    layer = make("hgrn2", lower=0.3)
    t, y = pieces(layer, x)
    f = 0.3 + 0.7 * torch.sigmoid(layer.split(layer.W_qfv(x).chunk(3, -1)[1]))
    torch.testing.assert_close(y, linear_equations.run_hgrn2(t.q, f, t.v, states(layer))[0])


def test_mamba2_follows_its_equations(x):
    layer = make("mamba2", state_channels=5)
    _, y = pieces(layer, x)
    v, b, c = layer.conv(layer.project(x), None, None, None)[0].split(layer.sizes, -1)
    dt = torch.nn.functional.softplus(layer.W_dt(x) + layer.b)
    expected = linear_equations.run_mamba2(layer.split(v), dt, -layer.A.exp(), b, c, states(layer))[0]
    torch.testing.assert_close(y, expected)


def test_deltanet_follows_its_equations(x):
    layer = make("deltanet", negative_eigenvalues=True, value_size=7)
    t, y = pieces(layer, x)
    torch.testing.assert_close(y, linear_equations.run_deltanet(t.q, t.k, t.v, t.beta, states(layer))[0])
    assert t.beta.max() > 1


def test_gated_deltanet_follows_its_equations(x):
    layer = make("gated_deltanet", key_size=5)
    t, y = pieces(layer, x)
    torch.testing.assert_close(
        y, linear_equations.run_gated_deltanet(t.q, t.k, t.v, t.decay.exp(), t.beta, states(layer))[0]
    )
    assert t.beta.max() < 1


def test_deltaproduct_follows_its_equations(x):
    layer = make("deltaproduct", writes=3)
    t, y = pieces(layer, x)
    k, v, beta = (part.unflatten(1, (T, 3)) for part in (t.k, t.v, t.beta))
    alpha = t.decay.unflatten(1, (T, 3))[:, :, 0].exp()
    torch.testing.assert_close(y, linear_equations.run_deltaproduct(t.q, k, v, alpha, beta, states(layer))[0])


def test_rwkv7_follows_its_equations(x):
    layer = make("rwkv7")
    t, y = pieces(layer, x)
    e, w = t.erase[:, 0::2], t.decay[:, 0::2].exp()
    a = t.k[:, 0::2] / e
    expected = linear_equations.run_rwkv7(t.q, w, t.k[:, 1::2], t.v[:, 1::2], e, a, states(layer))[0]
    torch.testing.assert_close(y, expected)


def test_retnet_follows_its_equations(x):
    layer = make("retnet", value_size=6)
    at = torch.arange(T).expand(B, T)
    q = layer.rotate(layer.split(layer.W_q(x)), at)
    k = layer.rotate(layer.split(layer.W_k(x)), at) * layer.key_size**-0.5
    v = layer.split(layer.W_v(x))
    y, S = linear_equations.run_retnet(q, k, v, layer.decays(x).exp(), states(layer))
    torch.testing.assert_close(layer(x)[1][1], S)
    expected = layer.W_o(layer.norm(y, layer.split(layer.W_g(x))).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected)


def test_mlstm_follows_its_equations_even_with_large_gates(x):
    layer = make("mlstm")
    with torch.no_grad():
        layer.W_if.weight.normal_(std=10.0)
    u = layer.conv(x, None, None, None)[0]
    q, k = (layer.split(t) for t in layer.W_qk(u).chunk(2, -1))
    i, f = layer.W_if(x).chunk(2, -1)
    assert i.max() > 10
    h = linear_equations.run_mlstm(q, k * layer.key_size**-0.5, layer.split(layer.W_v(x)), i, f)
    expected = layer.W_o(layer.norm(h, layer.split(layer.W_g(x))).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected)


def test_rg_lru_follows_its_equations(x):
    layer = make("rg_lru")
    u = layer.conv(layer.W_x(x), None, None, None)[0]
    log_a, write = layer.gates(u)
    r = log_a / (-rg_lru.SHARPNESS * torch.nn.functional.softplus(layer.L))
    h = linear_equations.run_rg_lru(u, r, write / u, layer.L, None)[0]
    expected = layer.W_o(h * torch.nn.functional.gelu(layer.W_g(x), approximate="tanh"))
    torch.testing.assert_close(layer(x)[0], expected)


def test_lru_and_s5_follow_their_equations(x):
    unit = make("lru", channels=6)
    a = torch.complex(*unit.transition())
    assert (a.abs() < 1).all()
    b = unit.gamma.exp() * (x.to(a.dtype) @ torch.complex(*unit.B).mT)
    h = linear_equations.run_lru(a, b, torch.zeros(B, 6, dtype=a.dtype))[0]
    out = (h @ torch.complex(*unit.C).mT).real + unit.d * x
    torch.testing.assert_close(unit(x)[0], unit.W_o(torch.nn.functional.gelu(out)))
    model = make("s5", channels=12)
    rate, step = torch.complex(-model.L_real.exp(), model.L_imag), model.dt.exp()
    a = torch.exp(rate * step)
    b = (a - 1) / rate * (x.to(a.dtype) @ torch.complex(*model.B).mT)
    h = linear_equations.run_lru(a, b, torch.zeros(B, 6, dtype=a.dtype))[0]
    out = 2 * (h @ torch.complex(*model.C).mT).real + model.d * x
    torch.testing.assert_close(model(x)[0], model.W_o(torch.nn.functional.gelu(out)))


def test_a_stack_takes_kinds_of_layers_in_turn():
    stack = seqloom.Transformer(
        D, HEADS, 4, causal=True, attention=["gated_deltanet", "dense", seqloom.RecurrentMixer], position="rotary"
    )
    kinds = [type(stack.layer_at(i).attention).__name__ for i in range(4)]
    assert kinds == ["GatedDeltaNet", "Attention", "RecurrentMixer", "GatedDeltaNet"]
    check_layer(
        lambda: seqloom.Transformer(D, HEADS, 3, causal=True, attention=["mamba2", "dense", seqloom.RecurrentMixer])
    )
    check_layer(lambda: seqloom.Hybrid(5, D, cell="gated_deltanet", heads=HEADS))


def test_a_stack_of_linear_recurrences_resets(x):
    stack = seqloom.Transformer(D, HEADS, 2, causal=True, attention="gated_deltanet").double().eval()
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[:, 9] = True
    torch.testing.assert_close(stack(x, reset=reset)[0][:, 9:], stack(x[:, 9:])[0])
    with pytest.raises(InputError, match="reset: Attention sees all steps"):
        seqloom.Transformer(D, HEADS, causal=True).double()(x, reset=reset)


def test_explain_names_the_kernel_of_every_recurrence():
    layer, x = seqloom.Transformer(D, HEADS, 2, causal=True, attention=["gla", "lru"]).eval(), torch.randn(2, 5, D)
    assert seqloom.explain(layer, x).kernels[0] == "chunk"
    with torch.no_grad():
        explanation = seqloom.explain(layer, x)
    assert explanation.kernels == ("cpu", "cpu")
    assert "not fla: flash-linear-attention runs on GPUs" in str(explanation)


def test_auto_leaves_to_chunks_what_fla_was_not_compared_for():
    q, k, v = (torch.randn(1, 5, 2, 16) for _ in range(3))
    decay = -torch.rand(1, 5, 2, 16)
    assert flash.why_not_auto(make_job(q, k, v, decay, beta=torch.rand(1, 5, 2))) is None
    assert "not been compared" in flash.why_not_auto(make_job(q, k, v, decay, k * decay.exp()))
    assert "not multiples of 16" in flash.why_not_auto(make_job(q[..., :8], k[..., :8], v))


def test_second_derivatives_of_fla_are_refused_and_not_left_out():
    x = torch.randn(3, requires_grad=True)
    (y,) = flash._FirstDerivative.apply(x)
    loss = y.square().sum()
    torch.testing.assert_close(torch.autograd.grad(loss, x, retain_graph=True)[0], 2 * x)
    with pytest.raises(UserError, match="no second derivative; use kernel='chunk'"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_a_missing_fla_is_a_line_and_no_error():
    with pytest.raises(UserError, match="kernel 'fla' cannot run this"):
        seqloom.GLA(D, HEADS, kernel="fla")(torch.randn(1, 3, D))


def test_mistakes_are_named(x):
    layer = make("gated_deltanet")
    _, (past, S) = layer(x)
    torch.testing.assert_close(layer(x, (past, S.float()))[0], layer(x, (past, S))[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(DtypeError, match=r"the state must be a floating-point tensor, got torch\.int64"):
        layer(x, (past, S.long()))
    with pytest.raises(InputError, match=r"the state must be \(3, 2, 4, 4\), got shape \(3, 2, 4, 3\)"):
        layer(x, (past, S[..., :3]))
    with pytest.raises(InputError, match=r"reset must be \(B, T\)"):
        layer(x, reset=torch.zeros(B, 2, dtype=torch.bool))
    for wrong, message in (
        ({"dim": 7}, "multiple of heads"),
        ({"causal": False}, "left to right"),
        ({"kernel": "cuda"}, "kernel must be one of"),
        ({"kernel_size": 1}, "kernel_size must be 0 or at least 2"),
    ):
        with pytest.raises(UserError, match=message):
            seqloom.GatedDeltaNet(**{"dim": 8, "heads": 2, **wrong})
    with pytest.raises(UserError, match="heads must be at least 1, got 0"):
        seqloom.S5(8, heads=0)
    with pytest.raises(UserError, match="got 10; take 16"):
        seqloom.S5(8, heads=4, channels=10)
    with pytest.raises(TypeError, match="did you mean 'negative_eigenvalues'"):
        seqloom.GatedDeltaNet(8, negative_eigenvalue=True)
