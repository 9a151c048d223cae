"""One contract for every layer: the same call, the same formats, a state that goes back in."""

import inspect

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import seqloom
from seqloom.core.errors import InputError
from seqloom.layers.layer import Layer
from seqloom.layers.registry import list_names, make

D, H, B, T = 6, 8, 3, 5
LENGTHS = torch.tensor([2, 5, 3])
WHOLE = {
    "Transformer": lambda: seqloom.Transformer(H, heads=2, causal=True),
    "encoder": lambda: seqloom.Transformer(H, heads=2),
    "TransformerXL": lambda: seqloom.TransformerXL(H, heads=2, segment=2, memory=4),
    "MemoryTransformer": lambda: seqloom.MemoryTransformer(H, heads=2, segment=2, slots=2),
}
LAYERS = {**{name: lambda name=name: make(name, D, H) for name in list_names()}, **WHOLE}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]().double().eval()


@pytest.fixture
def x(layer):
    return torch.randn(B, T, layer.input_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def tensors(state):
    return () if state is None else (state,) if isinstance(state, torch.Tensor) else tuple(state)


def test_every_layer_has_the_base_class(layer):
    assert isinstance(layer, Layer) and layer.batch_first
    assert {"state", "lengths"} <= set(inspect.signature(layer.forward).parameters)


def test_state_and_lengths_go_by_keyword_and_by_position(layer, x):
    y, state = layer(x)
    for again in (layer(x, None, None), layer(x, state=None, lengths=None), layer(x, lengths=[T] * B)):
        torch.testing.assert_close(again[0], y)
    if state is not None and layer.causal:
        torch.testing.assert_close(layer(x, state)[0], layer(x, state=state)[0])


def test_one_sequence_needs_no_batch(layer, x):
    torch.testing.assert_close(layer(x[0])[0], layer(x[:1])[0][0])


def test_time_may_come_first(layer, x):
    y = layer(x)[0]
    layer.batch_first = False
    torch.testing.assert_close(layer(x.transpose(0, 1))[0], y.transpose(0, 1))


def test_packed_and_nested_sequences_match_lengths(layer, x):
    y, state = layer(x, lengths=LENGTHS)
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    actual, end = layer(packed)
    torch.testing.assert_close(pad_packed_sequence(actual, batch_first=True)[0], y)
    for a, b in zip(tensors(end), tensors(state), strict=True):
        torch.testing.assert_close(a, b)
    nested = torch.nested.nested_tensor([row[:n] for row, n in zip(x, LENGTHS, strict=True)], layout=torch.jagged)
    for row, n, expected in zip(layer(nested)[0].unbind(), LENGTHS, y, strict=True):
        torch.testing.assert_close(row, expected[:n])


def test_a_state_goes_back_in(layer, x):
    _, state = layer(x[:, :2])
    if not layer.causal:
        return
    torch.testing.assert_close(layer(x[:, 2:], state=layer.detach(state))[0], layer(x)[0][:, 2:])


def test_rows_of_a_state_can_be_selected(layer, x):
    _, state = layer(x[:, :2])
    if not layer.causal:
        return
    rows = torch.tensor([2, 0, 2])
    torch.testing.assert_close(layer(x[rows, 2:], layer.select(state, rows))[0], layer(x)[0][rows, 2:])


def test_state_and_hx_are_the_same_argument():
    gru, x, h = seqloom.GRU(4, 8), torch.randn(5, 2, 4), torch.randn(1, 2, 8)
    torch.testing.assert_close(gru(x, state=h)[0], gru(x, hx=h)[0])
    with pytest.raises(InputError, match="two names of one argument"):
        gru(x, h, state=h)


@pytest.mark.parametrize("name", [n for n in seqloom.__all__ if isinstance(getattr(seqloom, n), type)])
def test_every_public_class_names_its_arguments(name):
    kinds = {p.kind for p in inspect.signature(getattr(seqloom, name)).parameters.values()}
    assert inspect.Parameter.VAR_POSITIONAL not in kinds
    if name not in ("Recurrent", "RecurrentMixer"):  # which pass on the settings of any cell
        assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_a_users_layer_shows_its_signature_too():
    class Mine(Layer):
        def __init__(self, width: int, *, depth: int) -> None:
            super().__init__()

    assert list(inspect.signature(Mine).parameters) == ["width", "depth"]
    assert inspect.signature(seqloom.GRU).parameters["kernel"].default == "auto"
    with pytest.raises(TypeError, match="Mine has no argument 'dept'; did you mean 'depth'"):
        Mine(4, dept=2)


def test_a_misspelt_keyword_names_the_nearest():
    for build in (seqloom.GRU, seqloom.AttnRNN, lambda *a, **k: seqloom.Recurrent("gru", *a, **k)):
        with pytest.raises(TypeError, match="'batchfirst'; did you mean 'batch_first'"):
            build(4, 8, batchfirst=True)
    with pytest.raises(TypeError, match=r"GRU has no argument 'proj_size'; only LSTM takes it, as in torch.nn"):
        seqloom.GRU(3, 4, proj_size=2)
    with pytest.raises(TypeError, match="TCN has no argument 'layer'; did you mean 'num_layers'"):
        seqloom.TCN(4, 8, layer=3)
