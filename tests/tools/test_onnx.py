"""ONNX files of recurrent layers: native operators or a Scan, with the values of torch."""

import copy
import warnings
from functools import cache
from unittest import mock

import pytest
import torch
from torch.export import Dim

import seqloom
import seqloom.cells
from seqloom.core.cell import Cell
from seqloom.tools.onnx import scan
from seqloom.tools.onnx.export import export_onnx, prepare
from seqloom.tools.onnx.operators import has_native_operator

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
B, T = Dim("B", min=1, max=256), Dim("T", min=1, max=4096)
SIZES = ((1, 1), (4, 13), (2, 40))  # rows and steps that the example does not have
NATIVE = ("gru", "lstm", "rnn")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _one_registry():
    """Share the exporter's table of operators, which takes half of the time of an export to build."""
    module = pytest.importorskip("torch.onnx._internal.exporter._registration")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        patch.setattr(module.ONNXRegistry, "from_torchlib", staticmethod(cache(module.ONNXRegistry.from_torchlib)))
        yield


class Several(torch.nn.Module):
    """Layers of one cell beside each other, so that one export serves all."""

    def __init__(self, cell, forms, **settings):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            seqloom.Recurrent(cell, 8, 8, layers, bidirectional=both, batch_first=True, **settings)
            for layers, both in forms
        )

    def forward(self, x, states, lengths):
        return [layer(x, state, lengths) for layer, state in zip(self.layers, states, strict=True)]

    def draw(self, rows, steps):
        with torch.no_grad():
            states = [layer(torch.randn(rows, 2, 8))[1] for layer in self.layers]
        lengths = torch.randint(0, steps + 1, (rows,))
        lengths[0] = steps
        return torch.randn(rows, steps, 8), states, lengths


def check_values(module, file):
    """Export a module, and compare it with torch for other numbers of rows and steps.

    The difference must be below 1e-5, or at most twice that of torch from float64: two layers of ln_lstm can magnify
    roundings a hundredfold.
    """
    x, states, lengths = module.draw(3, 7)
    shapes = [{1: B} if isinstance(s, torch.Tensor) else tuple({1: B} for _ in s) for s in states]
    export_onnx(module, (x, states, lengths), file, ({0: B, 1: T}, shapes, {0: B}))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names, precise = [i.name for i in session.get_inputs()], copy.deepcopy(module).double()
    for rows, steps in SIZES:
        arguments = module.draw(rows, steps)
        flat, form = torch.utils._pytree.tree_flatten(arguments)
        doubled = [t.double() if t.is_floating_point() else t for t in flat]
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(module(*arguments))
            exact = torch.utils._pytree.tree_leaves(precise(*torch.utils._pytree.tree_unflatten(doubled, form)))
        actual = session.run(None, dict(zip(names, [t.numpy() for t in flat], strict=True)))
        for ours, torchs, true in zip(actual, expected, exact, strict=True):
            off = float((torch.tensor(ours) - torchs).abs().max())
            assert off < 1e-5 or float((torch.tensor(ours) - true).abs().max()) <= 2 * float(
                (torchs - true).abs().max()
            )


def list_operators(file):
    return {node.op_type for node in onnx.load(file).graph.node}


QUICK = ("attn_rnn", "gru")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n not in QUICK)) for n in sorted(Cell.registry)]
)
def test_every_cell_has_the_values_of_torch_at_three_lengths_and_batches(name, tmp_path):
    torch.manual_seed(1)  # 0 draws an ln_lstm in which every rounding, the loop's too, grows a hundredfold
    forms = (
        [(1, False), (2, True)] if name in NATIVE else [(1, True)]
    )  # a Scan of another cell differs in its body alone
    module, file = Several(name, forms).eval(), tmp_path / "layer.onnx"
    check_values(module, file)
    operators = list_operators(file)
    assert (name.upper() in operators) == (name in NATIVE) == has_native_operator(module.layers[0])
    assert ("Scan" in operators) == (name not in NATIVE)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gru", {"reset_after": False, "bias": False}),
        pytest.param("rnn", {"nonlinearity": "elu"}, marks=pytest.mark.long),
        ("lstm", {"learn_initial_state": True}),
    ],
)
def test_native_operators_have_the_settings_of_the_cell(name, settings, tmp_path):
    check_values(Several(name, [(1, True)], **settings).eval(), tmp_path / "layer.onnx")
    assert name.upper() in list_operators(tmp_path / "layer.onnx")


class Twice(torch.nn.Module):
    """A layer that reads one sequence with lengths and another without, as a forecast by segments does."""

    def __init__(self):
        super().__init__()
        self.layer = seqloom.AttnRNN(4, 4, batch_first=True)

    def forward(self, x, lengths):
        _, state = self.layer(x, lengths=lengths)
        return self.layer(x, state)[0]


def test_a_layer_that_is_run_with_lengths_and_without_has_a_step_for_each(monkeypatch):
    steps = []
    monkeypatch.setattr(
        scan,
        "_export_step",
        lambda _, names, node: steps.append(names) or mock.MagicMock(inputs=[mock.Mock() for _ in node.args[3]]),
    )
    module = prepare(Twice().eval())
    program = torch.export.export(
        module, (torch.randn(3, 7, 4), torch.tensor([7, 0, 3])), dynamic_shapes=({0: B, 1: T}, {0: B}), strict=False
    )
    bodies = scan.make_bodies(program)
    assert steps == [["valid"], []] and sorted(names for _, names in bodies) == ["", "valid"]


@pytest.mark.long
def test_a_layer_that_is_run_twice_has_the_values_of_torch(tmp_path):
    module, file = Twice().eval(), tmp_path / "twice.onnx"
    x, lengths = torch.randn(3, 7, 4), torch.tensor([7, 0, 3])
    export_onnx(module, (x, lengths), file, ({0: B, 1: T}, {0: B}))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    (values,) = session.run(None, dict(zip(names, [x.numpy(), lengths.numpy()], strict=True)))
    torch.testing.assert_close(torch.from_numpy(values), module(x, lengths).detach(), rtol=0, atol=1e-5)


def test_a_cell_whose_equations_onnx_lacks_is_no_native_operator():
    assert not has_native_operator(seqloom.LSTM(4, 8, proj_size=3))
    assert not has_native_operator(seqloom.RNN(4, 8, nonlinearity="gelu"))
    assert not has_native_operator(torch.nn.GRU(4, 8))


def test_a_file_holds_no_path_of_this_machine(tmp_path):
    layer = seqloom.GRU(3, 4, batch_first=True).eval()
    export_onnx(layer, (torch.randn(2, 5, 3),), tmp_path / "gru.onnx", ({0: B, 1: T},), input_names=["x"])
    content = (tmp_path / "gru.onnx").read_bytes()
    assert b".py" not in content
    assert onnx.load_from_string(content).graph.input[0].name == "x"
