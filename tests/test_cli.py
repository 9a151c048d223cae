import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seqloom import __version__, cli, doctor
from seqloom.cell import Cell
from seqloom.settings import Compare

ROOT = Path(__file__).parents[1]
TINY = ["--seeds", "1", "--epochs", "1", "--hidden", "8"]


def command(*words, code=0):
    """A command in a process of its own: stdout, stderr."""
    env = {k: v for k, v in os.environ.items() if k != "SEQLOOM_TRACEBACK"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "seqloom", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def here(capsys, monkeypatch):
    """A command in this process: exit code, stdout, stderr."""
    monkeypatch.delenv("SEQLOOM_TRACEBACK", raising=False)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["compare", "--help"], ["list"]])
def test_help_and_version_do_not_load_torch(words):
    code = f"""
import sys
from seqloom import cli
try:
    cli.main({words!r})
except SystemExit as end:
    assert not end.code
heavy = [name for name in ("torch", "numpy", "sklearn", "scipy") if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == __version__ if words == ["--version"] else "Usage: seqloom" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lsit"], 'Did you mean "list"?'),
        (["list", "cels"], 'Did you mean "cells"?'),
        (["compare", "--modles", "gru"], "Did you mean --models?"),
        (["compare", "--epochs", "0"], "--epochs: Input should be greater than or equal to 1, got '0'"),
        (["compare", "--lr", "fast"], "--lr: Input should be a valid number"),
        (["compare", "--models", ","], "--models: name at least one model"),
        (["compare", "--reading", "columns"], "'rows' or 'pixels'"),
        (["compare", "--models", "gur"], "unknown cell 'gur'; did you mean 'gru'?"),
        (["compare", "--models", "nowhere.py:MyCell"], "there is no file 'nowhere.py'"),
        (["compare", "--models", "examples/my_cell.py:Mine"], "no cell 'Mine'; it has: MyCell"),
        (["list", "cells", "--hidden", "-1"], "hidden_size must be greater than 0, got -1"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(here, monkeypatch, words, said):
    monkeypatch.chdir(ROOT)
    code, out, err = here(*words)
    assert (code, out) == (2, "")
    assert err.startswith("seqloom: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_mistake_ends_the_process_with_code_2_and_no_traceback():
    out, err = command("compare", "--models", "gur", code=2)
    assert not out
    assert err.startswith("seqloom: unknown cell 'gur'; did you mean 'gru'?")
    assert err.count("\n") == 1


def test_the_traceback_can_be_asked_for(here, monkeypatch):
    monkeypatch.setenv("SEQLOOM_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown cell"):
        cli.main(["compare", "--models", "gur"])


def test_list_cells_has_a_row_for_every_registered_cell(here):
    code, out, _ = here("list", "cells", "--input", "3", "--hidden", "8", "--json")
    rows = {row["cell"]: row for row in json.loads(out)}
    ours = [name for name, kind in Cell.registry.items() if kind.__module__.startswith("seqloom.cells.")]
    assert code == 0
    assert sorted(ours) == [name for name in rows if name in ours]
    assert rows["gru"]["parameters"] == 3 * (3 * 8 + 8 * 8 + 2 * 8)
    assert rows["gru"]["kernels"][0] == "gru_cpu"
    assert rows["gru"]["description"] == "Reset and update gates around a tanh candidate."


def test_list_prints_tables(here):
    assert "3(dh + h^2 + 2h)" in here("list", "cells", "--hidden", "8")[1]
    layers, kernels = here("list", "layers")[1], here("list", "kernels")[1]
    assert any(line.split()[:3] == ["attn_rnn", "bi_attn_rnn", "One"] for line in layers.splitlines())
    assert any(line.split()[:2] == ["local_transformer", "bi_local_transformer"] for line in layers.splitlines())
    assert any(line.split()[:3] == ["min_gru_parallel", "min_gru", "parallel"] for line in kernels.splitlines())


def test_list_layers_and_kernels_are_json_on_request(here):
    rows = {row["layer"]: row for row in json.loads(here("list", "layers", "--json")[1])}
    assert rows["tcn"]["both ways"] is None and rows["gru"]["both ways"] == "bi_gru"
    assert all(row["description"] for row in rows.values())
    assert json.loads(here("list", "kernels", "--json")[1])[-1]["kernel"] == "any_loop"


def test_doctor_finds_every_kernel_right(here):
    code, out, _ = here("doctor", "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (0, True)
    assert {"any_loop", "gru_aten", "any_scan"} <= {k["kernel"] for k in found["kernels"]}
    assert found["hardware"]["cores"] >= 1


def test_doctor_ends_with_1_where_a_kernel_is_wrong(here, monkeypatch):
    wrong = doctor.Verdict("gru_aten", "cpu", "", "FAILED: off by 1.0e-02")
    monkeypatch.setattr(doctor, "verdicts", lambda: [wrong])
    code, out, _ = here("doctor")
    assert code == 1
    assert "FAILED: off by 1.0e-02" in out
    code, out, _ = here("doctor", "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


def test_a_persons_own_cell_is_trained_by_its_place():
    out, err = command("compare", "--models", "examples/my_cell.py:MyCell", *TINY, "--json")
    found = json.loads(out)
    assert {row["model"] for row in found["rows"]} >= {"examples/my_cell.py:MyCell", "logistic regression"}
    assert found["finished"] is True
    assert "examples/my_cell.py:MyCell, seed 0: validation accuracy" in err


def test_compare_prints_the_table_on_stdout_and_the_log_on_stderr(here):
    code, out, err = here("compare", "--models", "rnn,attn_rnn", "--seeds", "1", "--epochs", "1", "--hidden", "10")
    assert code == 0
    assert "logistic regression (baseline)" in out
    assert "failed: ValueError: hidden_size must be a multiple of heads" in out
    assert out.rstrip().endswith("One seed shows no difference between models: train with more.")
    assert err.splitlines()[2].startswith("rnn, seed 0: validation accuracy")
    assert "validation" not in out.split("digits by")[0]


def test_compare_ends_with_1_where_every_model_failed(here):
    code, out, _ = here("compare", "--models", "attn_rnn", "--seeds", "1", "--epochs", "1", "--hidden", "10")
    assert code == 1
    assert "No model was trained." in out


def test_the_command_in_the_document_makes_the_same_settings():
    settings = Compare(models="gru,my cells.py:Mine", lr=0.02, hidden=12)
    program, *words = shlex.split(settings.command())
    _, bound, *_ = cli.app.parse_args(words)
    assert program == "seqloom"
    assert bound.arguments["settings"] == settings


def test_ctrl_c_leaves_the_table_so_far_and_exit_code_130():
    words = [sys.executable, "-m", "seqloom", "compare", "--models", "rnn", "--seeds", "500", "--hidden", "8"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("rnn, seed 0"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        out = process.stdout.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert any(line.startswith("rnn ") for line in out.splitlines())
    assert "Interrupted: no conclusion." in out
