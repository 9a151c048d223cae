"""Linear recurrences against definitions that share no code with them: loops over steps and heads, in float64.

Each definition is written from the equations of the paper that the layer cites and computes one row x (T, D) from the
layer's weights. Outputs and gradients of the input and of all weights agree to 1e-10.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from seqloom.layers.linear.layer import Mixer
from seqloom.layers.linear.parts import HeadLayerNorm, HeadNorm

D, HEADS, T = 8, 2, 13
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def convolve(p, x, active=True):
    """Return each channel's sum over the last steps, then SiLU."""
    w, rows = p["conv.weight"], []
    taps = w.shape[1]
    for t in range(len(x)):
        total = p.get("conv.bias", torch.zeros(w.shape[0], dtype=x.dtype))
        for back in range(min(taps, t + 1)):
            total = total + w[:, taps - 1 - back] * x[t - back]
        rows.append(total)
    y = torch.stack(rows)
    return y * torch.sigmoid(y) if active else y


def heads_of(x):
    return x.reshape(len(x), HEADS, -1)


def normalise(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def rms(y, scale):
    return scale * y / torch.sqrt((y * y).mean(-1, keepdim=True) + 1e-5)


def silu(x):
    return x * torch.sigmoid(x)


def softplus(x):
    return torch.log1p(torch.exp(x))


def scan(q, A, write):
    """Return S_t^T q_t for S_t = A(t, h) S_(t-1) + write(t, h), (T, heads, V)."""
    S, rows = [0.0] * HEADS, []
    for t in range(len(q)):
        answers = []
        for h in range(HEADS):
            added = write(t, h)
            S[h] = added if t == 0 else A(t, h) @ S[h] + added
            answers.append(S[h].T @ q[t, h])
        rows.append(torch.stack(answers))
    return torch.stack(rows)


def outer(k, v):
    return k[:, None] * v[None, :]


def eye(k):
    return torch.eye(len(k), dtype=k.dtype)


def retnet(p, x, layer):
    q, k, v, g = (heads_of(x @ p[f"W_{n}.weight"].T) for n in "qkvg")
    K = q.shape[-1]

    def rotate(vector, t):  # pairs (i, i + K / 2)
        angle = t * 10000.0 ** (-torch.arange(0, K, 2, dtype=x.dtype) / K)
        a, b = vector[: K // 2], vector[K // 2 :]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])

    q = torch.stack([torch.stack([rotate(q[t, h], t) for h in range(HEADS)]) for t in range(len(x))])
    gamma = [1 - 2.0 ** (-5 - h) for h in range(HEADS)]
    y = scan(q, lambda t, h: gamma[h] * eye(q[t, h]), lambda t, h: outer(rotate(k[t, h], t) / math.sqrt(K), v[t, h]))
    return (rms(y, p["norm.scale"]) * silu(g)).flatten(1) @ p["W_o.weight"].T


def gla(p, x, layer):
    q, k, v = (heads_of(t) for t in (x @ p["W_qkv.weight"].T).split(layer.sizes, -1))
    a = torch.sigmoid(x @ p["W_a.0.weight"].T @ p["W_a.1.weight"].T + p["W_a.1.bias"]) ** (1 / 16)
    a = heads_of(a)
    y = scan(q / math.sqrt(q.shape[-1]), lambda t, h: torch.diag(a[t, h]), lambda t, h: outer(k[t, h], v[t, h]))
    return (rms(y, p["norm.scale"]) * silu(heads_of(x @ p["W_g.weight"].T))).flatten(1) @ p["W_o.weight"].T


def hgrn2(p, x, layer):
    q, f, v = (heads_of(t) for t in (x @ p["W_qfv.weight"].T).chunk(3, -1))
    f = layer.lower + (1 - layer.lower) * torch.sigmoid(f)
    y = scan(silu(q), lambda t, h: torch.diag(f[t, h]), lambda t, h: outer(1 - f[t, h], v[t, h]))
    return rms(y, p["norm.scale"]).flatten(1) @ p["W_o.weight"].T


def mamba2(p, x, layer):
    v, B, C = convolve(p, x @ p["W_in.weight"].T).split(layer.sizes, -1)
    v, dt = heads_of(v), softplus(x @ p["W_dt.weight"].T + p["b"])
    a = torch.exp(-dt * torch.exp(p["A"]))
    q = C[:, None].expand(-1, HEADS, -1)
    y = scan(q, lambda t, h: a[t, h] * eye(B[t]), lambda t, h: outer(B[t], dt[t, h] * v[t, h]))
    y = (y + p["d"][:, None] * v).flatten(1) * silu(x @ p["W_z.weight"].T)
    return rms(y, p["norm.scale"]) @ p["W_out.weight"].T


def split_qkv(p, x, layer):
    q, k, v = (heads_of(t) for t in convolve(p, x @ p["W_qkv.weight"].T).split(layer.sizes, -1))
    return normalise(q) / math.sqrt(q.shape[-1]), normalise(k), v


def deltanet(p, x, layer):
    q, k, v = split_qkv(p, x, layer)
    beta = torch.sigmoid(x @ p["W_b.weight"].T)
    y = scan(
        q,
        lambda t, h: eye(k[t, h]) - beta[t, h] * outer(k[t, h], k[t, h]),
        lambda t, h: beta[t, h] * outer(k[t, h], v[t, h]),
    )
    return rms(y, p["norm.scale"]).flatten(1) @ p["W_o.weight"].T


def gated_deltanet(p, x, layer):
    q, k, v = split_qkv(p, x, layer)
    beta = 2 * torch.sigmoid(x @ p["W_b.weight"].T)
    alpha = torch.exp(-torch.exp(p["A"]) * softplus(x @ p["W_a.weight"].T + p["b"]))
    y = scan(
        q,
        lambda t, h: alpha[t, h] * (eye(k[t, h]) - beta[t, h] * outer(k[t, h], k[t, h])),
        lambda t, h: beta[t, h] * outer(k[t, h], v[t, h]),
    )
    return (rms(y, p["norm.scale"]) * silu(heads_of(x @ p["W_g.weight"].T))).flatten(1) @ p["W_o.weight"].T


def deltaproduct(p, x, layer):
    n, size = layer.writes, D // HEADS
    q, k, v = convolve(p, x @ p["W_qkv.weight"].T).split(layer.sizes, -1)
    q = normalise(heads_of(q)) / math.sqrt(layer.key_size)
    k = normalise(k.reshape(len(x), n, HEADS, layer.key_size))
    v = v.reshape(len(x), n, HEADS, size)
    beta = 2 * torch.sigmoid(x @ p["W_b.weight"].T).reshape(len(x), n, HEADS)
    alpha = torch.exp(-torch.exp(p["A"]) * softplus(x @ p["W_a.weight"].T + p["b"]))

    def turn(t, j, h):  # a generalised Householder matrix
        return eye(k[t, j, h]) - beta[t, j, h] * outer(k[t, j, h], k[t, j, h])

    def transition(t, h):
        A = alpha[t, h] * eye(k[t, 0, h])
        for j in range(n):
            A = turn(t, j, h) @ A
        return A

    def write(t, h):
        added = torch.zeros(layer.key_size, size, dtype=x.dtype)
        for j in range(n):
            added = turn(t, j, h) @ added + beta[t, j, h] * outer(k[t, j, h], v[t, j, h])
        return added

    y = scan(q, transition, write)
    return (rms(y, p["norm.scale"]) * silu(heads_of(x @ p["W_g.weight"].T))).flatten(1) @ p["W_o.weight"].T


def mlstm(p, x, layer):
    q, k = (heads_of(t) for t in (convolve(p, x) @ p["W_qk.weight"].T).chunk(2, -1))
    v, g = (heads_of(x @ p[f"W_{n}.weight"].T) for n in "vg")
    i, f = (x @ p["W_if.weight"].T + p["W_if.bias"]).chunk(2, -1)
    i, f, k = torch.exp(i), torch.sigmoid(f), k / math.sqrt(k.shape[-1])
    one = torch.ones(1, dtype=x.dtype)
    decay = lambda t, h: f[t, h] * eye(k[t, h])  # noqa: E731
    y = scan(q, decay, lambda t, h: i[t, h] * outer(k[t, h], v[t, h]))
    n = scan(q, decay, lambda t, h: i[t, h] * outer(k[t, h], one))
    h = y / torch.maximum(n.abs(), one)
    return (rms(h, p["norm.scale"]) * silu(g)).flatten(1) @ p["W_o.weight"].T


def rwkv7(p, x, layer):
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    x_r, x_k, x_v, x_w, x_a, x_g = (x + (before - x) * mu for mu in p["mu"])
    r, k, v = (t @ p[f"W_{n}.weight"].T for n, t in (("r", x_r), ("k", x_k), ("v", x_v)))
    w = p["W_w.2.bias"] + torch.tanh(x_w @ p["W_w.0.weight"].T) @ p["W_w.1.weight"].T
    w = torch.exp(-0.606531 * torch.sigmoid(w))
    a = torch.sigmoid(p["W_a.2.bias"] + x_a @ p["W_a.0.weight"].T @ p["W_a.1.weight"].T)
    e = heads_of(k * p["k_e"])
    e = e / torch.sqrt((e * e).sum(-1, keepdim=True))
    k = heads_of(k * (1 + (a - 1) * p["k_a"]))
    r, v, w, a = (heads_of(t) for t in (r, v, w, a))
    y = scan(
        r, lambda t, h: torch.diag(w[t, h]) - outer(a[t, h] * e[t, h], e[t, h]), lambda t, h: outer(k[t, h], v[t, h])
    )
    mean, var = y.mean(-1, keepdim=True), y.var(-1, keepdim=True, correction=0)
    y = (y - mean) / torch.sqrt(var + layer.norm.eps)
    y = y * heads_of(p["norm.weight"][None]) + heads_of(p["norm.bias"][None])
    y = (y + (r * k * p["r_k"]).sum(-1, keepdim=True) * v).flatten(1)
    return (y * (torch.sigmoid(x_g @ p["W_g.0.weight"].T) @ p["W_g.1.weight"].T)) @ p["W_o.weight"].T


def rg_lru(p, x, layer):
    u = convolve(p, x @ p["W_x.weight"].T + p["W_x.bias"], active=False)
    blocks, h, rows = heads_of(u), None, []
    r, i = (
        torch.sigmoid(torch.stack([blocks[:, j] @ p[f"W_{n}"][j] + p[f"b_{n}"][j] for j in range(HEADS)], 1)).flatten(1)
        for n in "ri"
    )
    for t in range(len(x)):
        a = torch.sigmoid(-p["L"]) ** (8 * r[t])  # sigmoid(-L) = exp(-softplus(L))
        write = i[t] * u[t]
        h = write if h is None else a * h + torch.sqrt(1 - a * a) * write
        rows.append(h)
    gate = F.gelu(x @ p["W_g.weight"].T + p["W_g.bias"], approximate="tanh")
    return (torch.stack(rows) * gate) @ p["W_o.weight"].T + p["W_o.bias"]


def scan_complex(a, b):
    h, rows = torch.zeros_like(b[0]), []
    for t in range(len(b)):
        h = a * h + b[t]
        rows.append(h)
    return torch.stack(rows)


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def lru(p, x, layer):
    a = torch.exp(torch.complex(-torch.exp(p["nu"]), torch.exp(p["theta"])))
    B, C = torch.complex(*p["B"]), torch.complex(*p["C"])
    h = scan_complex(a, torch.exp(p["gamma"]) * (x.to(a.dtype) @ B.T))
    return gelu((h @ C.T).real + p["d"] * x) @ p["W_o.weight"].T + p["W_o.bias"]


def s5(p, x, layer):
    rate, dt = torch.complex(-torch.exp(p["L_real"]), p["L_imag"]), torch.exp(p["dt"])
    a = torch.exp(rate * dt)  # zero-order hold
    B, C = torch.complex(*p["B"]), torch.complex(*p["C"])
    h = scan_complex(a, (a - 1) / rate * (x.to(a.dtype) @ B.T))
    full = torch.cat([h, h.conj()], -1) @ torch.cat([C, C.conj()], -1).T  # conjugate pairs
    return gelu(full.real + p["d"] * x) @ p["W_o.weight"].T + p["W_o.bias"]


DEFINITIONS = {
    "retnet": (retnet, {"value_size": 6}),
    "gla": (gla, {"key_size": 3}),
    "hgrn2": (hgrn2, {"lower": 0.3}),
    "mamba2": (mamba2, {"state_channels": 5}),
    "deltanet": (deltanet, {"key_size": 3}),
    "gated_deltanet": (gated_deltanet, {"value_size": 5, "negative_eigenvalues": True}),
    "deltaproduct": (deltaproduct, {"writes": 3, "key_size": 5}),
    "mlstm": (mlstm, {"key_size": 3}),
    "rwkv7": (rwkv7, {"rank": 3}),
    "rg_lru": (rg_lru, {}),
    "lru": (lru, {"channels": 6}),
    "s5": (s5, {"channels": 8}),
}


def test_every_layer_has_a_definition():
    assert set(DEFINITIONS) == set(Mixer.registry)


@pytest.mark.parametrize("name", Mixer.registry)
def test_outputs_and_gradients_are_those_of_the_papers_equations(name):
    define, settings = DEFINITIONS[name]
    torch.manual_seed(0)
    layer = Mixer.registry[name](D, HEADS, **settings).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    x = torch.randn(2, T, D, dtype=torch.float64, requires_grad=True)
    names, weights = zip(*layer.named_parameters(), strict=True)
    expected = torch.stack([define(dict(zip(names, weights, strict=True)), row, layer) for row in x])
    actual, _ = layer(x)
    torch.testing.assert_close(actual, expected, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[0], expected, **CLOSE)  # the engine
    signs = torch.randn_like(expected)
    for a, b, part in zip(
        *(torch.autograd.grad((y * signs).sum(), (x, *weights)) for y in (actual, expected)), ("x", *names), strict=True
    ):
        torch.testing.assert_close(a, b, **CLOSE, msg=lambda m, part=part: f"gradient of {part}: {m}")


@pytest.mark.parametrize(("norm", "eps"), [(HeadLayerNorm(1, 2), 1e-6), (HeadNorm(2), 1e-5)])
def test_a_norm_adds_its_constant_to_the_variance(norm, eps):
    x = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64) * math.sqrt(eps)  # a variance of eps
    y = norm.double()(x, torch.full_like(x, 50.0))  # a gate of nearly 1 for a sigmoid
    gate = 50.0 if isinstance(norm, HeadNorm) else 1.0  # SiLU
    torch.testing.assert_close(y, torch.tensor([[[1.0, -1.0]]], dtype=torch.float64) * math.sqrt(0.5) * gate)
