"""Linear recurrences in torch.export and ONNX: any batch and length, states in and out."""

import pytest
import torch
from torch import nn
from torch.export import Dim

import seqloom
from seqloom.layers.linear.layer import Mixer


class Streamed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, *state):
        y, end = self.layer(x, state)
        return y, *end


def prepare(name):
    torch.manual_seed(0)
    layer = Mixer.registry[name](8, 2).eval()
    x = torch.randn(3, 7, 8)
    with torch.no_grad():
        state = layer(x)[1]
    shapes = {0: Dim("B", min=1, max=64), 1: Dim("T", min=1, max=4096)}
    return layer, (x, *state), (shapes, tuple({0: shapes[0]} for _ in state))


def run(layer, x, state):
    with torch.no_grad():
        y, end = layer(x, state)
    return y, *end


@pytest.mark.long
@pytest.mark.parametrize("name", Mixer.registry)
def test_a_program_takes_any_batch_and_length(name):
    layer, arguments, shapes = prepare(name)
    with torch.no_grad():
        program = torch.export.export(Streamed(layer), arguments, dynamic_shapes=shapes, strict=False).module()
    state = tuple(s[:2] for s in arguments[1:])
    for T in (13, 1):
        x = torch.randn(2, T, 8)
        for a, b in zip(program(x, *state), run(layer, x, state), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", Mixer.registry)
def test_an_onnx_file_takes_any_batch_and_length(name, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    layer, arguments, shapes = prepare(name)
    file = tmp_path / "layer.onnx"
    seqloom.export_onnx(Streamed(layer), arguments, file, shapes)
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    state = tuple(s[:2] for s in arguments[1:])
    for T in (13, 1):
        x = torch.randn(2, T, 8)
        inputs = {i.name: t.numpy() for i, t in zip(session.get_inputs(), (x, *state), strict=True)}
        for a, b in zip(session.run(None, inputs), run(layer, x, state), strict=True):
            torch.testing.assert_close(torch.from_numpy(a), b, rtol=1e-5, atol=1e-5)
