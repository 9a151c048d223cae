from functools import partial

import pytest
import torch
from torch import nn

from seqloom.attention import ATTENTIONS, Attention, LocalAttention, Pattern, PerformerAttention
from seqloom.attention.position import INPUT_POSITIONS, POSITIONS, Learned, Rotary
from seqloom.core.errors import InputError
from seqloom.layers.memory import RecurrentMixer
from seqloom.layers.transformer.block import Block, FeedForward
from seqloom.layers.transformer.layer import Transformer

B, T, S, D = 3, 11, 5, 16
CAUSAL = {
    "dense": "dense",
    "grouped": partial(Attention, kv_heads=2),
    "local": partial(LocalAttention, pattern=Pattern(3, (0,))),
    "linear": "linear",
    "performer": partial(PerformerAttention, features=8),
    "attn_rnn": RecurrentMixer,
    "lstm": partial(RecurrentMixer, cell="lstm"),
}


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def build(**settings):
    return Transformer(D, 4, 2, **settings).double().eval()


def stream(layer, x, **aside):
    steps, state = [], None
    for t in range(x.shape[1]):
        y, state = layer.step(x[:, t], state, **(aside if t == 0 else {}))
        steps.append(y)
    return torch.stack(steps, 1)


@pytest.mark.parametrize("attention", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("crossed", [False, True])
def test_streaming_matches_the_whole_sequence_for_every_causal_attention(attention, crossed):
    layer = build(causal=True, attention=attention, position="sinusoidal", memory_size=6 if crossed else None)
    x = random(B, T, D)
    aside = {"memory": random(B, S, 6), "memory_lengths": [5, 0, 2]} if crossed else {}
    whole, state = layer(x, **aside)
    steps = stream(layer, x, **aside)
    torch.testing.assert_close(steps, whole)
    inputs = (x, aside["memory"]) if crossed else x
    g = torch.randn_like(whole)
    torch.testing.assert_close(torch.autograd.grad(steps, inputs, g), torch.autograd.grad(whole, inputs, g))
    assert len(state) == layer.state_size and all(len(s) == B for s in state)


@pytest.mark.parametrize("position", [None, *INPUT_POSITIONS, *POSITIONS])
def test_streaming_with_every_position_continues_where_each_row_stopped(position):
    layer, x = build(causal=True, position=position), random(B, T, D)
    lengths = torch.tensor([T, 3, 7])
    whole, _ = layer(x, lengths=lengths)
    first, state = layer(x[:, :6], lengths=lengths.clamp(max=6))
    second, state = layer(x[:, 6:], state, (lengths - 6).clamp(min=0))
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    assert state[0].tolist() == lengths.tolist()
    more, _ = layer(x[:, :2], state)
    row = torch.cat([x[1, :3], x[1, :2]]).unsqueeze(0)
    torch.testing.assert_close(more[1], layer(row)[0][0, 3:])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_row_in_a_padded_batch_is_the_row_alone_and_padding_is_zeros(attention, norm):
    layer, x = build(attention=attention, block=Block(norm=norm)), random(B, T, D)
    spoiled = x.detach().masked_fill((torch.arange(T) >= 7).view(1, T, 1), torch.nan).requires_grad_()
    y, state = layer(spoiled, lengths=[7, 0, 4])
    assert state is None and not y[1].any() and not y[2, 4:].any()
    torch.testing.assert_close(y[:1, :7], layer(x[:1, :7])[0])
    torch.testing.assert_close(y[2:, :4], layer(x[2:, :4])[0])
    actual = torch.autograd.grad(y.square().sum(), (spoiled, *layer.parameters()))
    assert all(torch.isfinite(g).all() for g in actual) and not actual[0][1].any()


@pytest.mark.parametrize("crossed", [False, True])
def test_selected_rows_continue_as_in_the_full_batch(crossed):
    layer = build(causal=True, position="sinusoidal", memory_size=6 if crossed else None)
    x, rows = random(B, T, D), torch.tensor([2, 0, 0, 1])
    aside = {"memory": random(B, S, 6)} if crossed else {}
    _, state = layer(x[:, :4], **aside)
    whole, _ = layer(x[:, 4:], state)
    chosen, _ = layer(x[rows, 4:], layer.select(state, rows))
    torch.testing.assert_close(chosen, whole[rows])


def test_a_memory_given_again_replaces_the_first_one():
    layer, x = build(causal=True, memory_size=6), random(B, T, D)
    one, other = random(B, S, 6), random(B, S, 6)
    _, state = layer(x[:, :4], memory=one)
    same, _ = layer(x[:, 4:], state, memory=one)
    torch.testing.assert_close(same, layer(x[:, 4:], state)[0])
    assert not torch.allclose(same, layer(x[:, 4:], state, memory=other)[0])


def test_the_feed_forward_network_is_its_equation():
    x = random(B, T, D)
    gated = FeedForward(D, Block(activation="swiglu", hidden=24)).double()
    exact = gated.W_2(nn.functional.silu(gated.W_1(x)) * gated.W_3(x))
    torch.testing.assert_close(gated(x), exact)
    plain = FeedForward(D, Block()).double()
    torch.testing.assert_close(plain(x), plain.W_2(nn.functional.gelu(plain.W_1(x))))
    sizes = [sum(p.numel() for p in FeedForward(96, Block(activation=a)).parameters()) for a in ("gelu", "swiglu")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def test_local_attention_of_a_wide_window_makes_the_same_transformer():
    dense, x = build(causal=True, position="rotary"), random(B, T, D)
    local = build(causal=True, position="rotary", attention=partial(LocalAttention, pattern=T))
    local.load_state_dict(dense.state_dict())
    torch.testing.assert_close(local(x)[0], dense(x)[0])


def test_dropout_acts_in_training_alone_and_reaches_the_attention():
    layer, x = Transformer(D, 4, 1, block=Block(dropout=0.5)), torch.randn(B, T, D)
    assert layer.layer_at(0).attention.dropout == 0.5
    spared = Transformer(D, 4, 1, block=Block(dropout=0.5, attention_dropout=0.0))
    assert spared.layer_at(0).attention.dropout == 0 and spared.layer_at(0).feed.dropout == 0.5
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_a_given_position_serves_every_layer():
    rotary = Rotary(4, 4, base=100.0)
    layer = Transformer(D, 4, 2, position=rotary)
    assert all(layer.layer_at(i).attention.position is rotary for i in range(2))
    with pytest.raises(InputError, match="longer than the table of 4"):
        Transformer(D, position=Learned(D, 4))(torch.randn(1, 5, D))


def test_streaming_past_a_learned_table_raises_an_error():
    layer, state = Transformer(D, causal=True, position=Learned(D, 3)), None
    for _ in range(3):
        _, state = layer.step(torch.randn(1, D), state)
    with pytest.raises(InputError, match=r"4 steps .* table of 3"):
        layer.step(torch.randn(1, D), state)


def test_padding_needs_no_place_in_a_learned_table():
    layer, x = Transformer(D, causal=True, position=Learned(D, 8)), torch.randn(2, 10, D)
    _, state = layer(x[:, :6], lengths=[6, 2])
    y, _ = layer(x[:, 6:], state, [2, 4])
    torch.testing.assert_close(y[:1, :2], layer(x[:1, :8])[0][:, 6:])


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("attention", [CAUSAL[name] for name in ("dense", "local", "linear", "performer")])
@torch.no_grad()
def test_it_exports_whole_and_as_a_step(attention):
    layer = Transformer(D, 4, 1, causal=True, attention=attention, position="sinusoidal").eval()
    x = torch.randn(2, 6, D)
    whole, state = layer(x)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x)[0], whole)
    new = torch.randn(2, 1, D)
    program = torch.export.export(layer, (new, state))
    torch.testing.assert_close(program.module()(new, state)[0], layer(new, state)[0])


@torch.no_grad()
def test_it_exports_with_any_batch_and_length():
    layer, any_size = Transformer(D, 4, 1, causal=True, position="xl").eval(), torch.export.Dim.AUTO
    program = torch.export.export(layer, (torch.randn(2, 6, D),), dynamic_shapes=({0: any_size, 1: any_size},))
    x = torch.randn(3, 9, D)
    torch.testing.assert_close(program.module()(x)[0], layer(x)[0])


COMPILED = [(CAUSAL[name], "eager") for name in ("dense", "local", "linear", "performer")]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("attention", "backend"), [*COMPILED, ("linear", "aot_eager_decomp_partition")])
def test_it_compiles_in_one_graph(attention, backend):
    layer = Transformer(D, 4, 1, causal=True, attention=attention, position="sinusoidal")
    x = torch.randn(2, 20, D, requires_grad=True)
    y, _ = torch.compile(layer, fullgraph=True, backend=backend)(x)
    exact, _ = layer(x)
    torch.testing.assert_close(y, exact)
    g = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, x, g), torch.autograd.grad(exact, x, g))


def test_invalid_arguments_are_refused():
    x = torch.randn(2, 3, D)
    with pytest.raises(
        ValueError,
        match=r"one of dense, local, linear, performer, linformer, .*gated_deltanet.*, or a function, got 'full'",
    ):
        Transformer(D, attention="full")
    with pytest.raises(ValueError, match="one of sinusoidal, learned, rotary, alibi, relative, xl, got 'sin'"):
        Transformer(D, position="sin")
    with pytest.raises(ValueError, match="'linear' takes no position"):
        Transformer(D, attention="linear", position="rotary")
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        Transformer(D, num_layers=0)
    for wrong, words in (
        ({"norm": "mid"}, "'mid'"),
        ({"activation": "tanh"}, "'tanh'"),
        ({"dropout": 2}, "got 2"),
        ({"attention_dropout": -1}, "got -1"),
    ):
        with pytest.raises(ValueError, match=words):
            Block(**wrong)
    with pytest.raises(InputError, match="build it with memory_size="):
        Transformer(D)(x, memory=x)
    with pytest.raises(InputError, match="needs a memory"):
        Transformer(D, memory_size=D)(x)
    with pytest.raises(InputError, match="needs the whole sequence"):
        Transformer(D).step(x[:, 0])
    with pytest.raises(InputError, match="state must have 7 tensors, got 1"):
        Transformer(D, causal=True)(x, (x,))
