import pytest
import torch
from torch import nn

from seqloom.attention import Attention, LinformerAttention, LocalAttention
from seqloom.attention.convert import from_torch, rename_to_torch
from seqloom.attention.position import POSITIONS
from seqloom.core.errors import InputError

B, T, S, D = 3, 7, 5, 16
EVERY_POSITION = [None, *POSITIONS]


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def attention(*args, **kwargs):
    made = Attention(*args, **kwargs).double()
    for p in made.parameters():
        nn.init.normal_(p, std=0.4)  # biases and tables start at 0, which would hide errors in them
    return made


def torchs(**settings):
    module = nn.MultiheadAttention(D, 4, batch_first=True, **settings).double()
    for p in module.parameters():
        nn.init.normal_(p, std=0.4)
    return module


def same(mine, exact, inputs):
    torch.testing.assert_close(mine, exact)
    g = torch.randn_like(exact)
    torch.testing.assert_close(torch.autograd.grad(mine, inputs, g), torch.autograd.grad(exact, inputs, g))


@pytest.mark.parametrize("bias", [True, False])
def test_with_torchs_weights_it_is_torchs_self_attention(bias):
    module = torchs(bias=bias)
    mine, x = from_torch(module), random(B, T, D)
    mask = torch.rand(T, T) > 0.3
    mask[:, 0] = True
    y, state = mine(x, mask=mask)
    exact, weights = module(x, x, x, attn_mask=~mask, average_attn_weights=False)
    assert state is None
    same(y, exact, x)
    torch.testing.assert_close(mine.weights(x, mask=mask), weights)


@pytest.mark.parametrize("width", [D, 6])
def test_with_torchs_weights_it_is_torchs_attention_to_a_memory(width):
    module = torchs(kdim=width, vdim=width)
    mine, x, memory = from_torch(module), random(B, T, D), random(B, S, width)
    lengths = torch.tensor([5, 1, 3])
    y, _ = mine(x, memory=memory, memory_lengths=lengths)
    padding = torch.arange(S) >= lengths.unsqueeze(1)
    exact, weights = module(x, memory, memory, key_padding_mask=padding, average_attn_weights=False)
    same(y, exact, (x, memory))
    torch.testing.assert_close(mine.weights(x, memory=memory, memory_lengths=lengths), weights)


def test_weights_go_back_to_torch():
    for width in (D, 6):
        module, other = torchs(kdim=width, vdim=width), torchs(kdim=width, vdim=width)
        other.load_state_dict(rename_to_torch(from_torch(module).state_dict()))
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("position", EVERY_POSITION)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [True, False])
def test_its_output_is_its_weights_times_the_values(position, kv_heads, causal):
    mine, x = attention(D, 4, kv_heads=kv_heads, causal=causal, position=position), random(B, T, D)
    lengths = [7, 0, 4]
    y, _ = mine(x, lengths=lengths)
    a = mine.weights(x, lengths=lengths)
    v = mine.v(x).view(B, T, kv_heads, 4).transpose(1, 2).repeat_interleave(4 // kv_heads, 1)
    exact = mine.out((a @ v).transpose(1, 2).flatten(2))
    exact = exact * (torch.arange(T) < torch.tensor(lengths).unsqueeze(1)).unsqueeze(-1)
    same(y, exact, x)
    torch.testing.assert_close(a[0].sum(-1), torch.ones(4, T, dtype=torch.float64))
    if causal:
        assert not a.triu(1).any()


@pytest.mark.parametrize("position", EVERY_POSITION)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_streaming_matches_the_whole_sequence(position, kv_heads):
    mine, x = attention(D, 4, kv_heads=kv_heads, causal=True, position=position), random(B, T, D)
    whole, _ = mine(x)
    steps, state = [], None
    for t in range(T):
        y, state = mine.step(x[:, t], state)
        steps.append(y)
    same(torch.stack(steps, 1), whole, x)


@pytest.mark.parametrize("position", EVERY_POSITION)
def test_chunks_of_rows_with_gaps_match_each_row_by_itself(position):
    mine, x = attention(D, 4, causal=True, position=position), random(B, T, D)
    first, second = [3, 1, 4], [2, 3, 0]
    y1, state = mine(x[:, :4], lengths=first)
    y2, _ = mine(x[:, 4:], state, lengths=second)
    for b in range(B):
        row = torch.cat([x[b : b + 1, : first[b]], x[b : b + 1, 4 : 4 + second[b]]], 1)
        exact, _ = mine(row)
        torch.testing.assert_close(torch.cat([y1[b, : first[b]], y2[b, : second[b]]]), exact[0])
        assert not y1[b, first[b] :].any() and not y2[b, second[b] :].any()


def test_a_memory_is_read_once_and_then_taken_from_the_state():
    mine, x, memory = attention(D, 4, memory_size=6), random(B, T, D), random(B, S, 6)
    whole, _ = mine(x, memory=memory, memory_lengths=[5, 0, 2])
    first, state = mine.step(x[:, 0], memory=memory, memory_lengths=[5, 0, 2])
    rest, _ = mine(x[:, 1:], state)
    torch.testing.assert_close(torch.cat([first.unsqueeze(1), rest], 1), whole)


def test_a_memory_read_under_autocast_can_be_used_after_it():
    mine, x, memory = Attention(D, 4), torch.randn(B, T, D), torch.randn(B, S, D)
    with torch.autocast("cpu", torch.bfloat16):
        _, state = mine(x, memory=memory)
    torch.testing.assert_close(mine(x, state)[0], mine(x, memory=memory)[0], rtol=0.05, atol=0.05)


def test_selected_rows_continue_as_in_the_full_batch():
    mine, x = attention(D, 4, causal=True, position="rotary"), random(B, T, D)
    rows = torch.tensor([2, 0, 0, 1])
    _, state = mine(x[:, :4], lengths=[4, 2, 3])
    whole, _ = mine(x[:, 4:], state)
    chosen, _ = mine(x[rows, 4:], mine.select(state, rows))
    torch.testing.assert_close(chosen, whole[rows])


@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_a_query_that_may_attend_to_nothing_gets_only_the_output_bias(kind):
    mine, x = attention(D, 4), random(B, T, D)
    mask = torch.ones(B, T, T, dtype=torch.bool)
    mask[1, 2] = False
    given = mask if kind == torch.bool else torch.zeros(B, T, T, dtype=kind).masked_fill(~mask, -torch.inf)
    y, _ = mine(x, mask=given)
    torch.testing.assert_close(y[1, 2], mine.out.bias)
    assert not mine.weights(x, mask=given)[1, :, 2].any()
    (g,) = torch.autograd.grad(y.square().sum() + mine.weights(x, mask=given).square().sum(), x)
    assert torch.isfinite(g).all()


def test_nan_in_padding_has_no_effect():
    for causal in (True, False):
        mine, x = attention(D, 4, causal=causal), random(B, T, D)
        spoiled = x.masked_fill((torch.arange(T) >= 4).view(1, T, 1), torch.nan)
        y, _ = mine(spoiled, lengths=[4, 2, 0])
        clean, _ = mine(x, lengths=[4, 2, 0])
        assert torch.equal(y, clean)
        (g,) = torch.autograd.grad(y.square().sum(), x)
        assert torch.isfinite(g).all() and g[0, :4].any() and not g[2].any()


def test_dropout_acts_only_in_training():
    mine, x = attention(D, 4, dropout=0.5), random(B, T, D)
    assert not torch.equal(mine(x)[0], mine(x)[0])
    mine.eval()
    assert torch.equal(mine(x)[0], mine(x)[0])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
@pytest.mark.parametrize("layer", [Attention(16, causal=True), LocalAttention(16, pattern=3), LinformerAttention(16)])
def test_forward_mode_is_the_transpose_of_the_backward(layer):
    layer, (x, v) = layer.double(), torch.randn(2, 2, 7, 16, dtype=torch.float64)
    y, slope = torch.func.jvp(lambda x: layer(x)[0], (x,), (v,))
    u = torch.randn_like(y)
    (back,) = torch.func.vjp(lambda x: layer(x)[0], x)[1](u)
    torch.testing.assert_close((u * slope).sum(), (back * v).sum())


@pytest.mark.parametrize("kind", [Attention, LocalAttention])
def test_learned_positions_have_gradients_for_each_sample(kind):
    layer, x = kind(D, 4, position="xl").double(), random(B, T, D).detach()
    lengths, weights = torch.tensor([T, 3, 0]), dict(layer.named_parameters())

    def loss(weights, x, n):
        return torch.func.functional_call(layer, weights, (x[None], None, n[None]))[0].square().sum()

    torch.testing.assert_close(
        torch.vmap(loss, (None, 0, 0))(weights, x, lengths).sum(), layer(x, None, lengths)[0].square().sum()
    )
    one = torch.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, lengths)["position.W.weight"]
    (exact,) = torch.autograd.grad(layer(x, None, lengths)[0].square().sum(), weights["position.W.weight"])
    torch.testing.assert_close(one.sum(0), exact)


def test_it_exports_with_any_batch_and_length():
    mine = Attention(D, 4, causal=True, position="rotary").eval()
    size = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("time", min=2)}
    program = torch.export.export(mine, (torch.randn(2, 6, D),), dynamic_shapes=(size,))
    x = torch.randn(3, 9, D)
    torch.testing.assert_close(program.module()(x)[0], mine(x)[0])


def test_wrong_arguments_raise_clear_errors():
    with pytest.raises(ValueError, match="dim=10 and heads=4; take heads=1, 2, 5 or 10"):
        Attention(10, 4)
    with pytest.raises(ValueError, match="heads=4 and kv_heads=3; take kv_heads=1, 2 or 4"):
        Attention(16, 4, kv_heads=3)
    with pytest.raises(ValueError, match="one of rotary, alibi, relative, xl, got 'rotory'"):
        Attention(16, position="rotory")
    x = torch.randn(2, 3, 16)
    with pytest.raises(InputError, match=r"\(B, T, 16\), got shape \(2, 3, 8\)"):
        Attention(16)(torch.randn(2, 3, 8))
    with pytest.raises(InputError, match=r"at least one step, got shape \(2, 0, 16\)"):
        Attention(16)(x[:, :0])
    with pytest.raises(TypeError, match=r"input is torch.*64, the layer's weights are torch.*32"):
        Attention(16)(x.double())
    with pytest.raises(InputError, match="memory is on meta, the layer's weights are on cpu"):
        Attention(16)(x, memory=x.to("meta"))
    with pytest.raises(TypeError, match=r"a Tensor \(B, T, 16\), with lengths= .*, got a PackedSequence"):
        Attention(16)(nn.utils.rnn.pack_sequence([x[0], x[1]]))
    with pytest.raises(TypeError, match=r"mask must be bool .*int64"):
        Attention(16)(x, mask=torch.ones(3, 3, dtype=torch.long))
    with pytest.raises(InputError, match="state must have 3 tensors, got 2"):
        Attention(16, causal=True)(x, (x, x))
    with pytest.raises(InputError, match="LocalAttention with causal=False takes no state"):
        LocalAttention(16)(x, (x, x))
    with pytest.raises(InputError, match="construct one with causal=False"):
        Attention(16, causal=True)(x, memory=x)
    with pytest.raises(InputError, match="need a memory"):
        Attention(16)(x, memory_lengths=[1, 2])
    with pytest.raises(InputError, match="needs the whole sequence"):
        Attention(16).step(x[:, 0])
    with pytest.raises(InputError, match="one entry for each of 2 rows"):
        Attention(16)(x, lengths=[1, 2, 3])
    with pytest.raises(TypeError, match="whole numbers"):
        Attention(16)(x, lengths=torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match="add_bias_kv"):
        from_torch(nn.MultiheadAttention(16, 4, add_bias_kv=True))
