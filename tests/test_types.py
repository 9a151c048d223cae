"""The package's own types, and those that a user's strict type checker sees."""

import subprocess
import sys
from pathlib import Path

import pytest

import seqloom
import user_script

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
# Mistakes, and what the type checker says. It cannot check settings of a cell, as in `Recurrent(Cell, 8, 8, wrong=1)`,
# as types cannot describe them beside the layer's own keyword arguments. They are checked when the layer is built.
MISUSE = {
    "GRU(4, 8, batchfirst=True)": 'Unexpected keyword argument "batchfirst" for "GRU"; did you mean "batch_first"?',
    'GRU("4", 8)': 'Argument 1 to "GRU" has incompatible type "str"; expected "int"',
    'TCN(4, 8, kernel="cpu")': 'Unexpected keyword argument "kernel" for "TCN"',
    "Transformer(8, layers=2)": 'Unexpected keyword argument "layers" for "Transformer"',
    "Recurrent(3, 8, 8)": 'Argument 1 to "Recurrent" has incompatible type "int"; expected "str | type[Cell]"',
    "Dropouts(recurent=0.1)": 'Unexpected keyword argument "recurent" for "Dropouts"; did you mean "recurrent"?',
    'Classify(GRU(4, 8), "three")': 'Argument 2 to "Classify" has incompatible type "str"; expected "int | None"',
}


def test_a_setting_that_a_cell_lacks_is_named_when_the_layer_is_built():
    with pytest.raises(TypeError, match="cell 'Leaky' has no setting 'wrong'"):
        seqloom.Recurrent(user_script.Leaky, 8, 8, wrong=1)


@pytest.mark.long
def test_a_users_file_passes_the_type_checker_in_strict_mode_and_mistakes_are_seen(tmp_path):
    names = [*seqloom.__all__, "Run", "SequenceClassifier", "SequenceRegressor", "SequenceTagger", "compare", "train"]
    lines = [f"from seqloom import {name}" for name in names]
    (tmp_path / "mine.py").write_text("\n".join([*lines, USE, f"used = [{', '.join(names)}]\n"]))
    imports = "from seqloom import GRU, TCN, Classify, Dropouts, Recurrent, Transformer"
    (tmp_path / "mistaken.py").write_text("\n".join([imports, *MISUSE, ""]))
    files = [str(tmp_path / name) for name in ("mine.py", "mistaken.py")]
    command = [sys.executable, "-m", "mypy", "src/seqloom", "examples", "tests/user_script.py", *files]
    actual = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    errors = [line for line in actual.splitlines() if ": error: " in line]
    assert len(errors) == len(MISUSE) and all("mistaken.py" in line for line in errors), actual
    for error, expected in zip(errors, MISUSE.values(), strict=True):
        assert expected in error
