import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from seqloom.attention import LinearAttention, LinformerAttention, PerformerAttention
from seqloom.core.errors import InputError

B, T, D, HEADS = 3, 23, 8, 2


def build(attention, **settings):
    layer = attention(D, HEADS, **settings).double()
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return layer


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def same(mine, exact, inputs):
    torch.testing.assert_close(mine, exact)
    g = torch.randn_like(exact)
    torch.testing.assert_close(
        torch.autograd.grad(mine, inputs, g), torch.autograd.grad(exact, inputs, g, retain_graph=True)
    )


def heads(t):
    return t.view(*t.shape[:2], HEADS, -1).transpose(1, 2)


CAUSAL = [
    (LinearAttention, {}),
    (LinearAttention, {"chunk": 5}),
    (PerformerAttention, {"features": 16}),
    (PerformerAttention, {"features": 64, "kind": "trigonometric", "chunk": 1}),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_linear_attention_is_its_formula(causal, chunk):
    layer, x = build(LinearAttention, causal=causal, chunk=chunk), random(B, T, D)
    q, k, v = (heads(product(x)) for product in (layer.q, layer.k, layer.v))
    lengths = torch.tensor([T, 0, 9])
    a = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    a = a.tril() if causal else a
    real = torch.arange(T) < lengths.unsqueeze(1)
    a = a * real[:, None, None]
    a = a / a.sum(-1, keepdim=True).clamp(min=1e-300)
    exact = layer.out((a @ v).transpose(1, 2).flatten(2)) * real.unsqueeze(-1)
    same(layer(x, lengths=lengths)[0], exact, x)
    torch.testing.assert_close(layer.weights(x, lengths), a * real[:, None, :, None])


@pytest.mark.parametrize(("kind", "settings"), CAUSAL)
def test_recurrent_and_chunked_forms_agree(kind, settings):
    layer, x = build(kind, causal=True, **settings), random(B, T, D)
    lengths = torch.tensor([T, 4, 9])
    whole, _ = layer(x, lengths=lengths)
    for sizes in ([1] * T, [2, 20, 1]):
        outputs, state, start = [], None, 0
        for size in sizes:
            y, state = layer(x[:, start : start + size], state, (lengths - start).clamp(0, size))
            outputs.append(y)
            start += size
        same(torch.cat(outputs, 1), whole, x)
    y, _ = layer.step(x[:, 0])
    torch.testing.assert_close(y, whole[:, 0])


@pytest.mark.parametrize(("kind", "settings"), CAUSAL)
@pytest.mark.parametrize("causal", [False, True])
def test_padding_has_no_effect_and_an_empty_row_gives_zeros_and_finite_gradients(kind, settings, causal):
    layer, x = build(kind, causal=causal, **settings), random(B, T, D)
    spoiled = x.masked_fill((torch.arange(T) >= 9).view(1, T, 1), torch.nan)
    y, _ = layer(spoiled, lengths=[9, 0, 4])
    torch.testing.assert_close(y[:1, :9], layer(x[:1, :9])[0])
    assert not y[1].any() and not y[2, 4:].any() and y[2, :4].all()
    (g,) = torch.autograd.grad(y.square().sum(), x)
    assert torch.isfinite(g).all() and g[0, :9].any()


def test_a_step_costs_the_same_after_a_hundred_thousand_steps():
    layer = LinearAttention(16, 2, causal=True)
    with torch.no_grad():
        early = layer(torch.randn(1, 10, 16))[1]
        late = layer(torch.randn(1, 100_000, 16))[1]
        assert [s.shape for s in early] == [s.shape for s in late]
        work = []
        for state in (early, late):
            with FlopCounterMode(display=False) as counted:
                layer.step(torch.randn(1, 16), state)
            work.append(counted.get_total_flops())
        assert work[0] == work[1] > 0


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_many_steps_of_wide_heads_are_right_in_float16(causal):
    layer, x = LinearAttention(128, 2, causal=causal).half(), torch.randn(1, 1500, 128, dtype=torch.half)
    exact = copy.deepcopy(layer).double()(x.double())[0]
    assert (layer(x)[0].double() - exact).norm() < 0.01 * exact.norm()


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_stream_takes_chunks_without_padding():
    layer = LinearAttention(8, 2, causal=True, chunk=4).double()
    fast, x, state, ys = torch.compile(layer, fullgraph=True, backend="aot_eager"), random(B, 11, 8), None, []
    for part in x.split([3, 4, 4], 1):
        y, state = fast(part, state)
        ys.append(y)
    torch.testing.assert_close(torch.cat(ys, 1), layer(x)[0])


@pytest.mark.parametrize("kind", [LinearAttention, PerformerAttention])
@torch.no_grad()
def test_a_bfloat16_stream_keeps_accumulating(kind):
    layer, x = kind(16, 2, causal=True).bfloat16(), torch.randn(2, 800, 16, dtype=torch.bfloat16)
    exact, state = copy.deepcopy(layer).double()(x.double())[0][:, -100:], None
    steps = []
    for t in range(800):
        y, state = layer.step(x[:, t], state)
        steps.append(y)
    off = torch.stack(steps[-100:], 1).double() - exact
    assert off.norm() < 0.03 * exact.norm()


def test_linformer_is_its_formula():
    layer, x = build(LinformerAttention, rank=6, max_length=30), random(B, T, D)
    lengths = torch.tensor([T, 0, 9])
    real = (torch.arange(T) < lengths.unsqueeze(1)).unsqueeze(-1)
    q, k, v = heads(layer.q(x)), layer.k(x) * real, layer.v(x) * real
    k, v = heads(layer.E[:, :T] @ k), heads(layer.F[:, :T] @ v)
    exact = layer.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)) * real
    same(layer(x, lengths=lengths)[0], exact, (x, layer.E, layer.F))
    a = layer.weights(x, lengths)
    assert a.shape == (B, HEADS, T, 6)
    torch.testing.assert_close(a[0].sum(-1), torch.ones(HEADS, T, dtype=torch.float64))
    with pytest.raises(InputError, match=r"31 steps .* max_length=31"):
        layer(random(1, 31, D))
    with pytest.raises(ValueError, match="cannot be causal"):
        LinformerAttention(D, causal=True)
    with pytest.raises(InputError, match="needs the whole sequence"):
        layer.step(random(1, D))


def test_linformer_of_full_rank_with_unit_mixtures_is_dense_attention():
    layer, x = build(LinformerAttention, rank=T, max_length=T), random(B, T, D)
    with torch.no_grad():
        layer.E.copy_(torch.eye(T))
        layer.F.copy_(torch.eye(T))
    q, k, v = (heads(product(x)) for product in (layer.q, layer.k, layer.v))
    exact = layer.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    same(layer(x)[0], exact, x)


def test_redrawn_features_under_checkpointing_match_the_forward_or_raise():
    x = torch.randn(2, 5, 8, requires_grad=True)
    for redraw in (0, 1):
        layer = PerformerAttention(8, 2, features=16, redraw=redraw).double().train()
        torch.manual_seed(3)
        whole = torch.autograd.grad(layer(x.double())[0].square().sum(), x)
        torch.manual_seed(3)
        again = torch.autograd.grad(checkpoint(layer, x.double(), use_reentrant=False)[0].square().sum(), x)
        torch.testing.assert_close(again, whole)
    layer = PerformerAttention(8, 2, features=16, redraw=2).train()
    with pytest.raises(ValueError, match="redraw=2 under gradient checkpointing counts calls twice; use 1 or 0"):
        checkpoint(layer, x, use_reentrant=False)[0].sum().backward()
