"""torch.compile and torch.export: one graph, every length."""

import copy
import warnings

import pytest
import torch
from torch.export import Dim

import seqloom
import seqloom.cells
from seqloom.core.cell import Cell
from seqloom.layers.registry import LAYERS, make

NO_CODE = "aot_eager_decomp_partition"  # all of torch.compile but the C++ at its end, which takes most of the time
B, T = Dim("B", min=1, max=256), Dim("T", min=1, max=4096)
EXPORTED_CELLS = ("indrnn", "min_lstm", "rnn_attention")  # one state, two of a parallel scan, all states before


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compilers' own
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings", "backend"),
    [
        (seqloom.GRU, {"bidirectional": True}, NO_CODE),
        (seqloom.LSTM, {"num_layers": 2, "learn_initial_state": True}, NO_CODE),
        (seqloom.MinGRU, {"num_layers": 2}, NO_CODE),
        pytest.param(seqloom.MinGRU, {"num_layers": 2}, "inductor", marks=pytest.mark.long),
        pytest.param(seqloom.AttnRNN, {"num_layers": 2}, "inductor", marks=pytest.mark.long),
    ],
)
def test_compile_makes_one_graph_with_the_same_values_and_gradients(kind, settings, backend):
    layer = kind(5, 8, batch_first=True, **settings)
    whole = torch.compile(copy.deepcopy(layer), fullgraph=True, backend=backend)
    for rows, steps, lengths in ((3, 7, [7, 0, 3]), (4, 12, [1, 12, 5, 6])):
        x = torch.randn(rows, steps, 5)
        weight = torch.randn(rows, steps, layer.output_size)
        actual = []
        for model in (layer, whole):
            model.zero_grad()
            y, state = model(x, lengths=torch.tensor(lengths))
            (y * weight).sum().backward()
            last = state if isinstance(state, tuple) else (state,)
            actual.append([y.detach(), *(s.detach() for s in last), *(p.grad.clone() for p in model.parameters())])
        torch.testing.assert_close(actual[1], actual[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compile_trains_as_eager_does_with_every_dropout():
    noise = seqloom.Dropouts(recurrent=0.3, zoneout=0.2, weight=0.4)
    layer = seqloom.GRU(5, 8, batch_first=True, dropouts=noise, kernel="loop")
    whole = torch.compile(layer, fullgraph=True, backend=NO_CODE)
    y, _ = whole(torch.randn(3, 7, 5))
    y.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
    layer.eval()
    x = torch.randn(3, 7, 5)
    torch.testing.assert_close(whole(x)[0], layer(x)[0])


@pytest.mark.slow
def test_compile_returns_autocasts_type_and_carries_full_precision():
    layer = torch.compile(seqloom.GRU(5, 8, batch_first=True, kernel="loop"), fullgraph=True, backend=NO_CODE)
    with torch.autocast("cpu", torch.bfloat16):
        y, h = layer(torch.randn(3, 7, 5))
    assert y.dtype == torch.bfloat16 and h.dtype == torch.float32


def exported(name):
    """Most cells in one layer: that layers follow each other, or run both ways, is the same code for all."""
    torch.manual_seed(1)  # 0 draws an ln_lstm in which every rounding, the loop's too, grows a hundredfold
    layers, both = 1 + (name == "rnn"), name in ("gru", "lstm", "attn_rnn")
    layer = seqloom.Recurrent(name, 5, 8, layers, bidirectional=both, batch_first=True).eval()
    x, lengths = torch.randn(3, 7, 5), torch.tensor([7, 0, 3])
    with torch.no_grad():
        _, state = layer(x)
    state_shape = {1: B} if isinstance(state, torch.Tensor) else tuple({1: B} for _ in state)
    return layer, (x, state, lengths), ({0: B, 1: T}, state_shape, {0: B})


def elsewhere(layer):
    """Return another batch and length, and a state that is not the initial one."""
    x = torch.randn(4, 13, 5)
    with torch.no_grad():
        _, state = layer(torch.randn(4, 2, 5))
    return x, state, torch.tensor([13, 1, 0, 5])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n not in EXPORTED_CELLS)) for n in sorted(Cell.registry)]
)
def test_export_takes_any_batch_and_length(name):
    layer, arguments, shapes = exported(name)
    program = torch.export.export(layer, arguments, dynamic_shapes=shapes)
    other = elsewhere(layer)
    with torch.no_grad():
        expected = layer(*other)
        torch.testing.assert_close(program.module()(*other), expected)


SEGMENTS = ("transformer_xl", "memory_transformer")  # as many as the example has
EXPORTED = ("gated_deltanet", "transformer")  # by parts and by attention; what is made of both takes longer


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name not in EXPORTED))
        for name in sorted(set(LAYERS) - set(SEGMENTS))
    ],
)
def test_every_other_layer_exports_with_any_batch_and_length(name):
    """Use lengths around those at which attention needs one more block or chunk; in float32 some magnify rounding."""
    layer = make(name, 5, 8).double().eval()
    example = (torch.randn(3, 12, 5, dtype=torch.float64), None, torch.tensor([12, 0, 5]))
    shapes = ({0: B, 1: Dim("T", max=512)}, None, {0: B})
    with torch.no_grad():
        program = torch.export.export(layer, example, dynamic_shapes=shapes)
        for length in (1, 64, 129, 300):
            x, lengths = torch.randn(2, length, 5, dtype=torch.float64), torch.tensor([length, length // 2])
            expected = layer(x, None, lengths)[0]
            torch.testing.assert_close(program.module()(x, None, lengths)[0], expected)
