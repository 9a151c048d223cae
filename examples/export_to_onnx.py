"""Export a model to ONNX and run it with onnxruntime on other batches and lengths, and as a stream.

    pip install onnx onnxscript onnxruntime
    python examples/export_to_onnx.py [--file forecast.onnx]

The state is an input and an output of the exported graph, so a stream can be continued without torch.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.export import Dim

import seqloom


class Forecaster(nn.Module):
    """Foresee the next value of each of `features` series at every step."""

    def __init__(self, features: int = 3, hidden_size: int = 16) -> None:
        super().__init__()
        self.layer = seqloom.AttnRNN(features, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, features)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take x (B, T, D) and the state (1, B, H); return the forecasts (B, T, D) and the new state."""
        y, state = self.layer(x, state)
        return self.head(y), state


def write(model: nn.Module, file: Path) -> None:
    """Export the model with any number of rows and steps."""
    rows, steps = Dim("rows", min=1, max=256), Dim("steps", min=1, max=4096)
    example = (torch.randn(2, 8, 3), torch.zeros(1, 2, 16))
    shapes = ({0: rows, 1: steps}, {1: rows})
    names = {"input_names": ["x", "state"], "output_names": ["forecast", "new_state"]}
    seqloom.export_onnx(model.eval(), example, file, shapes, **names)


def main(file: Path | None = None) -> float:
    """Export, run, and return the largest difference from torch."""
    torch.manual_seed(0)
    model = Forecaster()
    with tempfile.TemporaryDirectory() as folder:
        path = file or Path(folder) / "forecast.onnx"
        write(model, path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        print(f"wrote {path.name}, {path.stat().st_size / 1e3:.0f} kB")
    x, state = torch.randn(5, 30, 3), torch.zeros(1, 5, 16)
    with torch.no_grad():
        expected, _ = model(x, state)
    whole, _ = session.run(None, {"x": x.numpy(), "state": state.numpy()})
    parts, now = [], state.numpy()
    for chunk in x.split(7, 1):  # the same as a stream of chunks
        y, now = session.run(None, {"x": chunk.numpy(), "state": now})
        parts.append(y)
    difference = max(float(np.abs(y - expected.numpy()).max()) for y in (whole, np.concatenate(parts, 1)))
    print(f"5 rows of 30 steps, at once and in chunks: largest difference from torch {difference:.0e}")
    assert difference < 1e-4, "onnxruntime and torch must agree"
    return difference


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help="where to keep the exported model")
    main(**vars(parser.parse_args()))
