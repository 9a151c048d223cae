import pytest
import torch

from seqloom.core.errors import InputError
from seqloom.layers.memory import MemoryTransformer, RecurrentMixer, TransformerXL
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.transformer.layer import Transformer

B, T, D = 3, 11, 16


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def stream(layer, x, sizes, lengths=None):
    outputs, state, start = [], None, 0
    for size in sizes:
        inside = None if lengths is None else (torch.tensor(lengths) - start).clamp(0, size)
        y, state = layer(x[:, start : start + size], state, inside)
        outputs.append(y)
        start += size
    return torch.cat(outputs, 1), state


LAYERS = {
    "xl": lambda: TransformerXL(D, 4, 2, segment=4, memory=8),
    "rotary": lambda: TransformerXL(D, 4, 2, segment=3, memory=3, position="rotary"),
    "no memory": lambda: TransformerXL(D, 4, 2, segment=4, memory=0),
    "attn_rnn": lambda: MemoryTransformer(D, 4, 2, segment=4, slots=3),
    "lstm": lambda: MemoryTransformer(D, 4, 2, segment=4, cell="lstm", position="learned"),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("sizes", [[1] * T, [3, 7, 1], [8, 3]], ids=str)
@pytest.mark.parametrize("lengths", [None, [11, 6, 0]])
def test_streaming_matches_the_whole_sequence(make, sizes, lengths):
    layer, x = make().double(), random(B, T, D)
    whole, state = layer(x, lengths=lengths)
    pieces, end = stream(layer, x, sizes, lengths)
    torch.testing.assert_close(pieces, whole)
    g = torch.randn_like(whole)
    torch.testing.assert_close(torch.autograd.grad(pieces, x, g), torch.autograd.grad(whole, x, g))
    assert len(state) == len(end) == layer.state_size
    assert [s.shape for s in state] == [s.shape for s in end] and all(len(s) == B for s in state)
    if lengths:
        assert not whole[1, 6:].any() and not whole[2].any()


@pytest.mark.parametrize("lengths", [[12, 1, 1], [11, -1, 1], [11, 1]])
def test_wrong_lengths_are_refused_though_segments_cut_them(lengths):
    x = torch.randn(B, T, D)
    for layer in (LAYERS["xl"](), LAYERS["attn_rnn"]()):
        with pytest.raises(InputError, match="lengths must"):
            layer(x, lengths=lengths)
    with pytest.raises(InputError, match="lengths must"):
        next(Recurrent("gru", D, D, batch_first=True).chunks(x, 4, lengths=lengths))


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_selected_rows_continue_as_in_the_full_batch(make):
    layer, x, rows = make().double(), random(B, T, D), torch.tensor([2, 0, 2])
    _, state = layer(x[:, :6])
    whole, _ = layer.step(x[:, 6], state)
    chosen, _ = layer.step(x[rows, 6], layer.select(state, rows))
    torch.testing.assert_close(chosen, whole[rows])


def test_xl_with_room_for_all_is_a_transformer_and_with_none_each_segment_is_alone():
    plain = Transformer(D, 4, 2, causal=True, position="xl").double()
    x = random(B, 12, D)
    for memory in (0, 8, 12):
        xl = TransformerXL(D, 4, 2, segment=4, memory=memory).double()
        xl.inner.load_state_dict(plain.state_dict())
        y, _ = xl(x)
        if memory == 0:
            exact = torch.cat([plain(part)[0] for part in x.split(4, 1)], 1)
        else:
            exact, _ = plain(x)
        torch.testing.assert_close(y, exact)


def test_xl_sees_the_steps_in_memory_and_one_layer_sees_none_farther():
    xl, x = TransformerXL(D, 4, 1, segment=4, memory=4).double(), random(1, 12, D)
    y, _ = xl(x)
    for changed, seen in ((3, False), (4, True)):
        other = x.detach().clone()
        other[0, changed] = torch.randn(D)
        assert torch.allclose(xl(other)[0][0, 8:], y[0, 8:]) != seen


def test_no_gradient_goes_into_the_memory_of_xl():
    xl, x = TransformerXL(D, 4, 2, segment=4, memory=8).double(), random(1, 12, D)
    (g,) = torch.autograd.grad(xl(x)[0][:, 8:].square().sum(), x)
    assert not g[:, :8].any() and g[:, 8:].any()


def test_gradient_goes_through_a_recurrent_memory_over_many_segments():
    layer, x = MemoryTransformer(D, 4, 1, segment=2, slots=2).double(), random(1, 12, D)
    y, _ = layer(x)
    (g,) = torch.autograd.grad(y[:, 10:].square().sum(), x)
    assert g[0, :2].abs().max() > 0


def test_a_recurrent_memory_is_its_equations():
    layer, x = MemoryTransformer(D, 4, 2, segment=4, slots=3).double(), random(B, 10, D)
    cell, state, parts = layer.memory.cell_at(0), None, []
    for part in x.split(4, 1):
        M = cell.initial_state(x[:, 0])[0] if state is None else state[0]
        y, _ = layer.inner(part, memory=M)
        _, state = layer.memory(y, state)
        parts.append(y)
    torch.testing.assert_close(layer(x)[0], torch.cat(parts, 1))


def test_recurrence_is_the_layer_of_its_cell_with_states_batch_first():
    mine, x = RecurrentMixer(D, 2, cell="lstm").double(), random(B, T, D)
    layer = Recurrent("lstm", D, D, batch_first=True).double()
    layer.load_state_dict(mine.layer.state_dict())
    y, state = mine(x, lengths=[11, 4, 0])
    exact, (h, c) = layer(x, lengths=torch.tensor([11, 4, 0]))
    torch.testing.assert_close(y, exact)
    torch.testing.assert_close(state, (h.transpose(0, 1), c.transpose(0, 1)))
    assert RecurrentMixer(D, 2).layer.cell_at(0).heads == 2


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="memory=5, segment=4"):
        TransformerXL(D, segment=4, memory=5)
    with pytest.raises(ValueError, match="segment must be at least 1, got 0"):
        TransformerXL(D, segment=0)
    with pytest.raises(ValueError, match="take 'xl', 'rotary' or 'alibi'"):
        TransformerXL(D, position="learned")
    with pytest.raises(ValueError, match="take causal=True"):
        Transformer(D, attention=RecurrentMixer)
    with pytest.raises(InputError, match=r"got shape \(2, 3, 4\)"):
        MemoryTransformer(D)(torch.randn(2, 3, 4))
