"""The package's own types, and those that a user's strict type checker sees."""

import subprocess
import sys
from pathlib import Path

import pytest

import seqloom

ROOT = Path(__file__).parents[1]
USE = """
import torch

layer: GRU = GRU(4, 8, num_layers=2, batch_first=True, dropouts=Dropouts(recurrent=0.1), init=Init(), kernel="auto")
y, state = layer(torch.randn(2, 5, 4), state=None, lengths=[5, 3])
cell: Cell = AttnRNNCell(4, 8, heads=2)
output: torch.Tensor = scan(cell, torch.randn(2, 5, 4))[0]
model = Classify(AttnRNN(4, 8, batch_first=True, slots=2), 3)
print(explain(layer, y), trace(layer, y), LSTM(4, 8, proj_size=2), RNN(4, 8, 1, "relu"), TCN(4, 8, num_layers=2))
Transformer(8, heads=2, causal=True)(torch.randn(2, 5, 8), state=None)
"""
MISUSE = """
GRU(4, 8, batchfirst=True)
GRU("4", 8)
"""


@pytest.mark.long
def test_a_users_file_passes_the_type_checker_in_strict_mode_and_mistakes_are_seen(tmp_path):
    names = [*seqloom.__all__, "Run", "SequenceClassifier", "SequenceRegressor", "SequenceTagger", "fit"]
    lines = [f"from seqloom import {name}" for name in names]
    (tmp_path / "mine.py").write_text("\n".join([*lines, USE, f"used = [{', '.join(names)}]\n"]))
    (tmp_path / "mistaken.py").write_text(f"from seqloom import GRU\n{MISUSE}")
    files = [str(tmp_path / name) for name in ("mine.py", "mistaken.py")]
    command = [sys.executable, "-m", "mypy", "src/seqloom", "examples", *files]
    actual = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    errors = [line for line in actual.splitlines() if ": error: " in line]
    assert len(errors) == 2 and all("mistaken.py" in line for line in errors), actual
    assert 'Unexpected keyword argument "batchfirst" for "GRU"; did you mean "batch_first"?' in errors[0]
    assert 'Argument 1 to "GRU" has incompatible type "str"; expected "int"' in errors[1]
