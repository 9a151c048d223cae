import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from seqloom.attention import Attention, LocalAttention, Pattern
from seqloom.attention.position import POSITIONS

B, D = 2, 8
PATTERNS = [
    Pattern(0),
    Pattern(3),
    Pattern(20),
    Pattern(7, block=3),
    Pattern(5, (0, 1, 2), block=4),
    Pattern(5, (0, 11, 40), block=4),
    Pattern(5, random_blocks=3, block=4),
    Pattern(4, (0, 30), random_blocks=2, block=5),
]
CAUSAL = PATTERNS[:5]


def both(pattern, causal=False, position=None, **settings):
    """Return local attention, and dense attention with the same weights."""
    local = LocalAttention(D, 2, pattern=pattern, causal=causal, position=position, **settings).double()
    for p in local.parameters():
        torch.nn.init.normal_(p, std=0.4)
    dense = Attention(D, 2, causal=causal, position=position, **settings).double()
    dense.load_state_dict(local.state_dict())
    return local, dense


def same(mine, exact, inputs):
    torch.testing.assert_close(mine, exact)
    g = torch.randn_like(exact)
    torch.testing.assert_close(
        torch.autograd.grad(mine, inputs, g), torch.autograd.grad(exact, inputs, g, retain_graph=True)
    )


FORMS = [(pattern, False) for pattern in PATTERNS] + [(pattern, True) for pattern in CAUSAL]


@pytest.mark.parametrize(("pattern", "causal"), FORMS, ids=str)
@pytest.mark.parametrize("T", [1, 5, 33, 64])
def test_it_is_dense_attention_under_the_same_mask(pattern, causal, T):
    local, dense = both(pattern, causal)
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    mask = pattern.mask(T, causal)
    for lengths in (None, [T, T // 2]):
        exact, _ = dense(x, lengths=lengths, mask=mask)
        same(local(x, lengths=lengths)[0], exact, x)
        torch.testing.assert_close(local.weights(x, lengths), dense.weights(x, lengths=lengths, mask=mask))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", POSITIONS)
def test_positions_and_grouped_heads_are_those_of_dense_attention(position, causal):
    for pattern in (Pattern(4), Pattern(4, (0, 1), block=3)):
        if position == "xl" and pattern.global_steps:
            continue
        local, dense = both(pattern, causal, position, kv_heads=1)
        x = torch.randn(B, 23, D, dtype=torch.float64, requires_grad=True)
        same(local(x)[0], dense(x, mask=pattern.mask(23, causal))[0], x)


def test_the_mask_is_the_union_of_the_three_sets():
    T, w, G = 40, 3, (2, 17)
    plain, mask = Pattern(w, G).mask(T), Pattern(w, G, random_blocks=2, block=4).mask(T)
    for i in range(T):
        for j in range(T):
            assert plain[i, j] == (abs(i - j) <= w or i in G or j in G)
    drawn = (mask & ~plain).view(10, 4, 10, 4).sum((1, 3))
    assert not (plain & ~mask).any()
    assert ((drawn > 0).sum(1) <= 2).all() and drawn.any()
    assert torch.equal(mask, Pattern(w, G, random_blocks=2, block=4).mask(T))
    assert not torch.equal(mask, Pattern(w, G, random_blocks=2, block=4, seed=1).mask(T))


@pytest.mark.parametrize("pattern", CAUSAL, ids=str)
@pytest.mark.parametrize("position", [None, "rotary", "alibi"])
def test_streaming_matches_the_whole_sequence_with_a_state_of_constant_size(pattern, position):
    local, _ = both(pattern, True, position)
    T = 30
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([T, 19])
    whole, _ = local(x, lengths=lengths)
    for sizes in ([1] * T, [3, 26, 1], [26, 4]):
        outputs, state, start, shapes = [], None, 0, set()
        for size in sizes:
            y, state = local(x[:, start : start + size], state, (lengths - start).clamp(0, size))
            outputs.append(y)
            shapes.add(tuple(s.shape for s in state))
            start += size
        same(torch.cat(outputs, 1), whole, x)
        assert len(shapes) == 1
        assert state[4].tolist() == [T, 19]


def test_a_step_is_a_chunk_of_one_and_rows_can_be_selected():
    local, _ = both(Pattern(3, (0,)), True)
    x = torch.randn(B, 9, D, dtype=torch.float64)
    whole, _ = local(x)
    _, state = local(x[:, :8])
    rows = torch.tensor([1, 0, 1])
    y, _ = local.step(x[rows, 8], local.select(state, rows))
    torch.testing.assert_close(y, whole[rows, 8])


def test_weights_changes_neither_random_state_nor_layer():
    layer, x = LocalAttention(D, 2, pattern=3, position="relative"), torch.randn(B, 9, D)
    drawn = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        layer.weights(x.bfloat16())
    assert {p.dtype for p in layer.parameters()} == {torch.float32}
    assert torch.equal(torch.get_rng_state(), drawn)


def test_invalid_or_non_causal_patterns_raise_errors():
    with pytest.raises(ValueError, match="random_blocks=0"):
        LocalAttention(8, pattern=Pattern(3, random_blocks=1), causal=True)
    with pytest.raises(ValueError, match=r"global_steps of a causal attention must be the first ones .*, got \(1,\)"):
        LocalAttention(8, pattern=Pattern(3, (1,)), causal=True)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        Pattern(3, (-1,))
    with pytest.raises(ValueError, match="at least 0"):
        Pattern(-1)
    with pytest.raises(ValueError, match="a window only"):
        LocalAttention(8, pattern=Pattern(3, (0,)), position="xl")


def work_and_memory(layer, T, **given):
    """Count the floating-point operations of both passes, and the bytes that the forward keeps for the backward."""
    x, kept = torch.empty(1, T, 64, device="meta", requires_grad=True), {}

    def keep(t):
        kept[id(t)] = t
        return t

    with FlopCounterMode(display=False) as flops, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y, _ = layer.to("meta")(x, **given)
        y.sum().backward()
    return flops.get_total_flops(), sum(t.numel() * t.element_size() for t in kept.values())


def test_at_16k_steps_it_takes_an_eighth_of_the_work_and_memory_of_dense_attention():
    T = 16_384
    with sdpa_kernel(SDPBackend.MATH):  # whose products are counted
        band = torch.empty(T, T, dtype=torch.bool, device="meta")
        dense = work_and_memory(Attention(64, 4), T, mask=band)
    local = work_and_memory(LocalAttention(64, 4, pattern=256), T)
    assert local[0] < dense[0] / 8 and local[1] < dense[1] / 8
