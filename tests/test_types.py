"""The package's own types, and those that a user's strict type checker sees."""

import subprocess
import sys
from pathlib import Path

import pytest

import seqloom

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_package_and_a_users_file_pass_the_type_checker_in_strict_mode(tmp_path):
    names = [*seqloom.__all__, "Run", "SequenceClassifier", "SequenceRegressor", "SequenceTagger", "fit"]
    lines = [f"from seqloom import {name}" for name in names]
    (tmp_path / "mine.py").write_text("\n".join([*lines, "layer: GRU = GRU(4, 8)", f"used = [{', '.join(names)}]\n"]))
    command = [sys.executable, "-m", "mypy", "src/seqloom", str(tmp_path / "mine.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
