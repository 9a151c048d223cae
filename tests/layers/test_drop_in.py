"""seqloom.RNN, LSTM and GRU in the place of torch's: the same arguments, weights and results."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import seqloom

KINDS = ["RNN", "LSTM", "GRU"]
KERNELS = ["auto", "loop"]


def pair(kind, *args, kernel="auto", **kwargs):
    """Return torch's layer, and ours with its weights."""
    theirs = getattr(nn, kind)(*args, **kwargs)
    ours = getattr(seqloom, kind)(*args, kernel=kernel, **kwargs)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def states(layer, rows=(), seed=1):
    """Return an h0 (and c0) for this layer, in torch's shape."""
    torch.manual_seed(seed)
    count = layer.num_layers * (1 + layer.bidirectional)
    dtype = next(layer.parameters()).dtype
    widths = [layer.proj_size or layer.hidden_size]
    widths += [layer.hidden_size] if isinstance(layer, (nn.LSTM, seqloom.LSTM)) else []
    made = tuple(torch.randn(count, *rows, width, dtype=dtype, requires_grad=True) for width in widths)
    return made if len(made) > 1 else made[0]


def close(a, b, within=1e-6):
    torch.testing.assert_close(a, b, rtol=0, atol=within if a.dtype == torch.float32 else 1e-12)


def results(layer, x, h0):
    """Return outputs, states, and gradients of the input, of h0 and of every weight."""
    y, end = layer(x, h0)
    outputs = [y.data if isinstance(y, PackedSequence) else y, *tensors(end)]
    torch.manual_seed(2)
    loss = sum((o * torch.randn(o.shape, dtype=o.dtype)).sum() for o in outputs)
    leaves = [x.data if isinstance(x, PackedSequence) else x, *tensors(h0), *layer.parameters()]
    return outputs, torch.autograd.grad(loss, leaves)


@pytest.mark.sample(5)  # no factor of the numbers of values: every pair of values stays
@pytest.mark.parametrize(
    ("kernel", "dtype"), [("auto", torch.float32), ("auto", torch.float64), ("loop", torch.float32)]
)
@pytest.mark.parametrize("form", ["time first", "batch first", "packed"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("layers", "bidirectional"), [*product([1, 2, 3], [False, True])])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_torch(kind, layers, bidirectional, bias, form, kernel, dtype):
    torch.manual_seed(0)
    options = dict(bias=bias, bidirectional=bidirectional, batch_first=form == "batch first", dtype=dtype)
    theirs, ours = pair(kind, 3, 4, layers, kernel=kernel, **options)
    x = torch.randn((4, 5, 3) if form == "batch first" else (5, 4, 3), dtype=dtype, requires_grad=True)
    if form == "packed":
        x = pack_padded_sequence(x.detach(), torch.tensor([2, 5, 1, 3]), enforce_sorted=False)
        x.data.requires_grad_()
    outputs, gradients = results(ours, x, states(ours, (4,)))
    expected, expected_gradients = results(theirs, x, states(theirs, (4,)))
    for mine, torchs in zip(outputs, expected, strict=True):
        close(mine, torchs)
    for mine, torchs in zip(gradients, expected_gradients, strict=True):
        close(mine, torchs, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_load_into_torch(kind):
    ours = getattr(seqloom, kind)(3, 4, 2, bidirectional=True)
    theirs = getattr(nn, kind)(3, 4, 2, bidirectional=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 2, 3)
    close(theirs(x)[0], ours(x)[0])


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"bidirectional": True}, {"dtype": torch.float64}])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_first_weights(kind, options):
    torch.manual_seed(7)
    theirs = getattr(nn, kind)(3, 4, 2, **options)
    torch.manual_seed(7)
    ours = getattr(seqloom, kind)(3, 4, 2, **options)
    for mine, torchs in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, torchs)


@pytest.mark.parametrize("kind", KINDS)
def test_reset_parameters_draws_what_a_new_layer_would_have(kind):
    ours = getattr(seqloom, kind)(3, 4, 2)
    torch.manual_seed(7)
    ours.reset_parameters()
    torch.manual_seed(7)
    for mine, torchs in zip(ours.parameters(), getattr(nn, kind)(3, 4, 2).parameters(), strict=True):
        assert torch.equal(mine, torchs)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 3, "bidirectional": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_have_torchs_names_and_order(kind, options):
    theirs, ours = pair(kind, 3, 4, **options)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize("kernel", KERNELS)
def test_rnn_takes_relu(kernel):
    theirs, ours = pair("RNN", 3, 4, 2, nonlinearity="relu", kernel=kernel)
    x = torch.randn(5, 2, 3)
    close(ours(x)[0], theirs(x)[0])
    assert ours.nonlinearity == "relu"
    assert ours(x)[0].min() == 0


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # torch's own words
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_takes_proj_size(bidirectional, kernel):
    theirs, ours = pair("LSTM", 3, 6, 2, proj_size=4, bidirectional=bidirectional, kernel=kernel)
    x = torch.randn(5, 2, 3, requires_grad=True)
    outputs, gradients = results(ours, x, states(ours, (2,)))
    expected, expected_gradients = results(theirs, x, states(theirs, (2,)))
    assert outputs[0].shape[-1] == 4 * (1 + bidirectional)
    for mine, torchs in zip((*outputs, *gradients), (*expected, *expected_gradients), strict=True):
        close(mine, torchs, 1e-5)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("RNN", (3, 4, 2, "relu", False, True, 0.5, True)),
        ("LSTM", (3, 4, 2, False, True, 0.5, True, 2)),
        ("GRU", (3, 4, 2, False, True, 0.5, True)),
    ],
)
def test_positional_arguments_stand_in_torchs_order(kind, arguments):
    theirs, ours = pair(kind, *arguments, device="cpu", dtype=torch.float64)
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size"]
    names += ["nonlinearity"] if kind == "RNN" else []
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.weight_ih_l0.dtype == torch.float64


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_needs_no_batch(kind, batch_first):
    theirs, ours = pair(kind, 3, 4, 2, bidirectional=True, batch_first=batch_first)
    x = torch.randn(5, 3, requires_grad=True)
    outputs, gradients = results(ours, x, states(ours))
    expected, expected_gradients = results(theirs, x, states(theirs))
    for mine, torchs in zip((*outputs, *gradients), (*expected, *expected_gradients), strict=True):
        assert mine.shape == torchs.shape
        close(mine, torchs, 1e-5)


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_in_is_packed_out_in_the_same_order(kind, enforce_sorted):
    theirs, ours = pair(kind, 3, 4, bidirectional=True)
    lengths = [5, 3, 3, 1] if enforce_sorted else [3, 1, 5, 3]
    x = pack_padded_sequence(torch.randn(5, 4, 3), lengths, enforce_sorted=enforce_sorted)
    y, state = ours(x, states(ours, (4,)))
    expected, expected_state = theirs(x, states(theirs, (4,)))
    close(y.data, expected.data)
    assert torch.equal(y.batch_sizes, expected.batch_sizes)
    for name in ("sorted_indices", "unsorted_indices"):
        mine, torchs = getattr(y, name), getattr(expected, name)
        assert (mine is None and torchs is None) if enforce_sorted else torch.equal(mine, torchs)
    for mine, torchs in zip(tensors(state), tensors(expected_state), strict=True):
        close(mine, torchs)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_state_has_the_batch_second_whatever_batch_first_says(kind, batch_first):
    ours = getattr(seqloom, kind)(3, 4, 2, bidirectional=True, batch_first=batch_first)
    y, state = ours(torch.randn((5, 7, 3) if batch_first else (7, 5, 3)))
    assert y.shape == ((5, 7, 8) if batch_first else (7, 5, 8))
    assert all(s.shape == (4, 5, 4) for s in tensors(state))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_states_may_be_viewed_as_torchs(kind):
    for layer in pair(kind, 3, 4, 2, bidirectional=True):
        y, state = layer(torch.randn(7, 5, 3))
        assert y.view(7 * 5, 8).shape == (35, 8)
        assert all(s.view(2, 2, 5, 4).is_contiguous() for s in tensors(state))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_works(kind):
    theirs, ours = pair(kind, 3, 4, 2, bidirectional=True)
    y, state = ours(torch.randn(5, 0, 3))
    expected, expected_state = theirs(torch.randn(5, 0, 3))
    assert y.shape == expected.shape
    assert [s.shape for s in tensors(state)] == [s.shape for s in tensors(expected_state)]


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_of_no_steps_raises(kind, error):
    with pytest.raises(error, match="sequence length to be larger than 0"):
        getattr(seqloom, kind)(3, 4)(torch.randn(0, 2, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_starts_at_zero(kind):
    ours = getattr(seqloom, kind)(3, 4, 2)
    x = torch.randn(5, 2, 3)
    zero = torch.zeros(2, 2, 4)
    assert torch.equal(ours(x)[0], ours(x, (zero, zero) if kind == "LSTM" else zero)[0])


def test_every_test_that_the_documentation_names_exists():
    root = Path(__file__).parents[2]
    text = (root / "docs/reference/drop-in.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    named = re.findall(r"`([\w/]+\.py)::(\w+)` \|$", text, re.MULTILINE)
    assert len(named) == len(rows) - 3  # each row but the three headings ends with a test
    for file, name in named:
        assert f"\ndef {name}(" in (root / "tests" / file).read_text(), f"{file} has no {name}"
