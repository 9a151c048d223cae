"""Sequences of different lengths: as lengths, packed, nested, alone."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import seqloom
import seqloom.cells  # the registry, for the parametrisation

LENGTHS = [2, 5, 1, 4]
each_cell = pytest.mark.parametrize("cell", sorted(seqloom.Cell.registry))
each_kernel = pytest.mark.parametrize("kernel", ["auto", "loop"])


def make(cell, *args, **kwargs):
    torch.manual_seed(0)
    return seqloom.Recurrent(cell, *args or (3, 8), batch_first=True, **kwargs)


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def close(a, b, within=1e-6):
    torch.testing.assert_close(a, b, rtol=0, atol=within)


def some(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@each_kernel
@each_cell
def test_lengths_match_packing(cell, kernel):
    layer = make(cell, 3, 8, 2, bidirectional=True, kernel=kernel)
    x = some(4, 5, 3)
    y, state = layer(x, lengths=LENGTHS)
    packed, packed_state = layer(pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False))
    close(y, pad_packed_sequence(packed, batch_first=True)[0])
    for mine, other in zip(tensors(state), tensors(packed_state), strict=True):
        close(mine, other)


@each_cell
def test_a_row_with_a_length_is_the_row_alone(cell):
    layer = make(cell, 3, 8, 2, bidirectional=True, dtype=torch.float64)
    x = some(4, 5, 3).double()
    y, state = layer(x, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS):
        alone, alone_state = layer(x[row : row + 1, :length])
        close(y[row : row + 1, :length], alone, 1e-12)
        assert not y[row, length:].any()
        for mine, other in zip(tensors(state), tensors(alone_state), strict=True):
            close(mine[:, row : row + 1], other, 1e-12)


@each_cell
def test_a_row_of_length_zero_keeps_the_state_it_was_given(cell):
    layer = make(cell, 3, 8, 2, bidirectional=True)
    _, given = layer(some(2, 5, 3))  # any states of the right form
    y, state = layer(some(2, 5, 3), given, lengths=[0, 5])
    assert not y[0].any() and y[1].any()
    for before, after in zip(tensors(given), tensors(state), strict=True):
        assert torch.equal(after[:, 0], before[:, 0])


@each_kernel
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "attn_rnn"])
def test_rows_of_length_zero_alone_have_gradients_of_zero(cell, kernel):
    layer = make(cell, kernel=kernel)
    y, _ = layer(some(2, 5, 3), lengths=[0, 0])
    y.sum().backward()
    assert not y.any()
    assert not any(p.grad.any() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "lengths",
    [LENGTHS, tuple(LENGTHS), torch.tensor(LENGTHS), torch.tensor(LENGTHS, dtype=torch.int32)],
    ids=["list", "tuple", "int64", "int32"],
)
def test_lengths_come_as_a_list_a_tuple_or_a_tensor(lengths):
    layer = make("gru")
    x = some(4, 5, 3)
    assert torch.equal(layer(x, lengths=lengths)[0], layer(x, lengths=torch.tensor(LENGTHS))[0])


def test_lengths_of_the_whole_change_nothing():
    layer = make("lstm", 3, 8, 2, bidirectional=True)
    x = some(4, 5, 3)
    close(layer(x, lengths=[5] * 4)[0], layer(x)[0])


@each_kernel
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "attn_rnn", "min_gru"])
def test_lengths_and_packing_have_the_same_gradients(cell, kernel):
    layer = make(cell, 3, 8, 2, bidirectional=True, kernel=kernel)
    x = some(4, 5, 3).requires_grad_()
    packed = layer(pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False))[0]
    leaves = [x, *layer.parameters()]
    expected = torch.autograd.grad(packed.data.square().sum(), leaves)
    actual = torch.autograd.grad(layer(x, lengths=LENGTHS)[0].square().sum(), leaves)
    for mine, other in zip(actual, expected, strict=True):
        close(mine, other, 1e-5)


@each_kernel
@each_cell
def test_what_lies_past_a_length_reaches_no_result_and_no_gradient(cell, kernel):
    layer = make(cell, bidirectional=True, kernel=kernel)
    x = some(2, 5, 3)
    y, state = layer(x, lengths=[3, 5])
    dirty = x.clone()
    dirty[0, 3:] = torch.nan
    dirty.requires_grad_()
    y_dirty, state_dirty = layer(dirty, lengths=[3, 5])
    for mine, clean in zip((y_dirty, *tensors(state_dirty)), (y, *tensors(state)), strict=True):
        close(mine, clean)
    y_dirty.sum().backward()
    assert dirty.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", ["reset", "timespans"])
def test_times_and_resets_past_a_length_reach_no_result_and_no_gradient(name):
    layer = make("ode_gru", bidirectional=True)
    x, h0 = some(2, 5, 3), some(2, 2, 8)
    clean = torch.zeros(2, 5) if name == "reset" else torch.ones(2, 5)
    dirty = clean.clone()
    dirty[0, 3:] = torch.nan
    y = layer(x, h0, [3, 5], **{name: dirty})[0]
    close(y, layer(x, h0, [3, 5], **{name: clean})[0])
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", ["reset", "timespans"])
def test_times_and_resets_of_a_packed_batch_stand_in_the_order_of_its_rows(name):
    layer = make("ode_gru", bidirectional=True)
    x = some(4, 5, 3)
    aside = {name: some(4, 5) > 0 if name == "reset" else some(4, 5).abs()}
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    y, _ = pad_packed_sequence(layer(packed, **aside)[0], batch_first=True)
    close(y, layer(x, lengths=LENGTHS, **aside)[0])


def jagged(lengths, **kwargs):
    rows = [some(4, 5, 3)[i, :length] for i, length in enumerate(lengths)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, **kwargs)


@pytest.mark.parametrize("lengths", [LENGTHS, [2, 0, 5, 1]])
@each_cell
def test_a_jagged_tensor_comes_back_jagged(cell, lengths):
    layer = make(cell, 3, 8, 2, bidirectional=True)
    x = jagged(lengths)
    y, state = layer(x)
    padded, padded_state = layer(some(4, 5, 3), lengths=lengths)
    assert y.is_nested and y.layout == torch.jagged
    assert torch.equal(y.offsets(), x.offsets())
    for mine, other, length in zip(y.unbind(), padded, lengths, strict=True):
        close(mine, other[:length])
    for mine, other in zip(tensors(state), tensors(padded_state), strict=True):
        close(mine, other)


@pytest.mark.parametrize("cell", ["gru", "lstm", "attn_rnn"])
def test_gradients_go_through_a_jagged_tensor(cell):
    layer = make(cell)
    x = jagged(LENGTHS, requires_grad=True)
    layer(x)[0].values().square().sum().backward()
    padded = some(4, 5, 3).requires_grad_()
    layer(padded, lengths=LENGTHS)[0].square().sum().backward()
    for mine, other, length in zip(x.grad.unbind(), padded.grad, LENGTHS, strict=True):
        close(mine, other[:length], 1e-5)


def test_a_jagged_output_can_be_added_to_its_input():
    layer = make("gru", 8, 8)
    x = torch.nested.nested_tensor([some(2, 8), some(4, 8)], layout=torch.jagged)
    assert (x + layer(x)[0]).is_nested  # a residual connection


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_one_sequence_may_have_a_length(cell):
    layer = make(cell, 3, 8, 2, bidirectional=True)
    x = some(5, 3)
    y, state = layer(x, lengths=[3])
    alone, alone_state = layer(x[:3])
    close(y[:3], alone)
    assert y.shape == (5, 16) and not y[3:].any()
    for mine, other in zip(tensors(state), tensors(alone_state), strict=True):
        close(mine, other)


@pytest.mark.parametrize("lengths", [[], torch.zeros(0, dtype=torch.long)], ids=["list", "tensor"])
def test_an_empty_batch_takes_empty_lengths(lengths):
    y, _ = make("gru")(torch.randn(0, 5, 3), lengths=lengths)
    assert y.shape == (0, 5, 8)


def test_lengths_fit_time_first_too():
    layer = make("gru")
    x = some(4, 5, 3)
    expected = layer(x, lengths=LENGTHS)[0]
    layer.batch_first = False
    close(layer(x.transpose(0, 1), lengths=LENGTHS)[0].transpose(0, 1), expected)


@pytest.mark.parametrize("small", [torch.uint8, torch.int8, torch.int32])
def test_lengths_may_be_of_a_small_type(small):
    x, lengths = some(3, 6, 4), torch.tensor([6, 0, 3])
    layers = [make("gru", 4, 4, bidirectional=True), seqloom.TransformerXL(4, 2, segment=2, memory=2)]
    for layer in layers:
        assert torch.equal(layer(x, lengths=lengths.to(small))[0], layer(x, lengths=lengths)[0])
    gru = make("gru", 4, 4)
    for (y, _), (expected, _) in zip(
        gru.chunks(x, 4, lengths=lengths.to(small)), gru.chunks(x, 4, lengths=lengths), strict=True
    ):
        assert torch.equal(y, expected)
