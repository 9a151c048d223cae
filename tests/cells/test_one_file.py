"""A cell added in one new file is listed, checked, timed and trainable; no other line changes."""

import os
import shutil
from pathlib import Path

import pytest

import seqloom

PACKAGE = Path(seqloom.__file__).parent
CELL = Path(__file__).parents[2] / "examples" / "my_cell.py"
USE = """
import contextlib, io, json, os
import seqloom
from seqloom.cli import main
from seqloom.core.cell import Cell
from seqloom.layers.registry import list_names, make

assert seqloom.__file__.startswith(os.getcwd())
assert "my_cell" in list_names() and "bi_my_cell" in list_names()
seqloom.testing.check_cell(Cell.registry["my_cell"])
seqloom.testing.check_layer(lambda: make("my_cell", 5, 8))

def run(*words):
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main.main([*words, "--json"])
    return json.loads(printed.getvalue())

assert "my_cell" in [row["cell"] for row in run("list", "cells")]
rows = run("bench", "--cells", "my_cell", "--hidden", "8", "--batch", "2", "--length", "4", "--rounds", "1")["rows"]
assert {row["cell"] for row in rows} >= {"my_cell"}
run("train", "adding", "--task.steps", "8", "--model", "my_cell", "--steps", "4", "--hidden", "8", "--out", "runs/mine")
"""


@pytest.mark.slow
def test_a_cell_is_one_file(tmp_path, warm_python):
    shutil.copytree(PACKAGE, tmp_path / "seqloom")  # with its bytecode: compiling it again takes seconds
    shutil.copy(CELL, tmp_path / "seqloom" / "cells")
    env = os.environ | {"SEQLOOM_CACHE": str(tmp_path / "cache")}
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USE}"
    done = warm_python.run(code, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
