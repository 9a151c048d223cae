import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqloom import __version__
from seqloom.cli import main
from seqloom.core.cell import Cell
from seqloom.lab import console
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.training.run import Run
from seqloom.tools import doctor

ROOT = Path(__file__).parents[2]
TINY = ["--seeds", "1", "--steps", "9", "--tune", "1", "--parameters", "2000", "--workers", "1"]


def command(*words, code=0):
    """Run a command in a new process and return stdout and stderr."""
    env = {k: v for k, v in os.environ.items() if k != "SEQLOOM_TRACEBACK"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "seqloom", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def here(capsys, monkeypatch):
    """Return a function that runs a command in this process: exit code, stdout, stderr."""
    monkeypatch.delenv("SEQLOOM_TRACEBACK", raising=False)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main.main(words)
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["bench", "--help"], ["list"]])
def test_help_and_version_do_not_load_torch(words):
    code = f"""
import sys
from seqloom.cli import main
try:
    main.main({words!r})
except SystemExit as end:
    assert not end.code
heavy = [name for name in ("torch", "numpy", "sklearn", "scipy") if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == __version__ if words == ["--version"] else "Usage: seqloom" in done.stdout
    assert not done.stderr


def test_a_mistyped_name_is_reported_without_torch():
    code = """
import sys
from seqloom.cli import main
for command in ("look", "init", "train", "advise", "compare", "predict", "evaluate", "generate", "translate"):
    try:
        main.main([command, "nosuchfile"])
    except SystemExit as end:
        assert end.code == 2
heavy = [name for name in ("torch", "numpy", "polars", "sklearn", "scipy") if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("'nosuchfile'") == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lsit"], 'Did you mean "list"?'),
        (["list", "cels"], 'Did you mean "cells"?'),
        (["bench", "--kernels", "gru_cpuu"], "there is no kernel 'gru_cpuu'; did you mean 'gru_cpu'?"),
        (["compare", "--modles", "gru"], "Did you mean --models?"),
        (["compare", "--seeds", "0"], "--seeds must be at least 1, got '0'"),
        (["compare", "--steps", "many"], "--steps must be a whole number, got 'many'"),
        (["compare", "--models", ","], "--models: name at least one model"),
        (["compare", "--budget", "10"], "--budget: write a time as 90s, 10m, 2h or 1h30m, got '10'"),
        (["compare", "--task.reading", "columns"], "reading must be one of rows, pixels, got 'columns'"),
        (["compare", "nothing.csv"], "'nothing.csv' is neither a file, nor a folder, nor a task"),
        (["compare", "--models", "gur"], "there is no layer 'gur'; did you mean 'gru'?"),
        (["compare", "--resume", "--out", "nowhere"], "nowhere holds no comparison to resume"),
        (["compare", "--out", "Makefile"], "--out: Makefile is a file; name a folder"),
        (["train", "digits", "--out", "docs"], "docs holds files that are not a run; choose another folder"),
        (["train", "digits", "--runs", ".", "--name", "docs"], "docs holds files that are not a run"),
        (["train", "digits", "--out", "a", "--name", "b"], "--out a names the whole folder of the run"),
        (["compare", "--models", "nowhere.py:MyCell"], "there is no file 'nowhere.py'"),
        (["compare", "--models", "examples/my_cell.py:Mine"], "no cell 'Mine'; it has: MyCell"),
        (["list", "cells", "--hidden", "-1"], "hidden_size must be greater than 0, got -1"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(here, monkeypatch, words, message):
    monkeypatch.chdir(ROOT)
    code, out, err = here(*words)
    assert (code, out) == (2, "")
    assert err.startswith("seqloom: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("train", ["--name", "--runs"]),
        ("explore", ["--save", "--export-attributions"]),
        ("compare", []),
        ("export", []),
    ],
)
def test_where_results_go_is_one_option(here, name, hidden):
    code, out, _ = here(name, "--help")
    assert code == 0 and "--out" in out
    assert not [option for option in hidden if option in out]


def test_a_mistake_ends_the_process_with_code_2_and_no_traceback():
    out, err = command("predict", "nosuchfile", "x.csv", code=2)  # needs no torch, whose import takes seconds
    assert not out
    assert err.startswith("seqloom: ") and "'nosuchfile'" in err
    assert err.count("\n") == 1


def test_an_environment_variable_shows_the_traceback(here, monkeypatch):
    monkeypatch.setenv("SEQLOOM_TRACEBACK", "1")
    with pytest.raises(ValueError, match="there is no layer"):
        main.main(["compare", "--models", "gur"])


def test_out_of_gpu_memory_is_one_line_and_a_bug_is_not(here, monkeypatch):
    long = "CUDA out of memory. Tried to allocate 39.30 GiB. GPU 0 has a total capacity of 139.80 GiB. See docs."
    for error in (torch.OutOfMemoryError(long), RuntimeError("a fault")):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(main, "app", fail)
        if type(error) is RuntimeError:
            with pytest.raises(RuntimeError, match="a fault"):
                main.main(["list"])
        else:
            code, out, err = here("list")
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert "Tried to allocate 39.30 GiB; stop other programs" in err and "See docs" not in err


def test_list_cells_has_a_row_for_every_registered_cell(here):
    code, out, _ = here("list", "cells", "--input", "3", "--hidden", "8", "--json")
    rows = {row["cell"]: row for row in json.loads(out)}
    ours = [name for name, kind in Cell.registry.items() if kind.__module__.startswith("seqloom.cells.")]
    assert code == 0
    assert sorted(ours) == [name for name in rows if name in ours]
    assert rows["gru"]["parameters"] == 3 * (3 * 8 + 8 * 8 + 2 * 8)
    assert rows["gru"]["kernels"][:3] == ["gru_cuda", "gru_grid", "gru_cpu"]
    assert rows["gru"]["description"] == "Reset and update gates around a tanh candidate."
    assert len(ours) >= 60
    assert (rows["mgu"]["year"], rows["mgu"]["idea"], rows["mgu"]["parent"]) == (2016, "one gate", "gru")


def test_list_prints_tables(here):
    layers, kernels = here("list", "layers")[1], here("list", "kernels")[1]
    assert any(line.split()[:2] == ["attn_rnn", "bi_"] for line in layers.splitlines())
    assert any(line.split()[:2] == ["local_transformer", "bi_"] for line in layers.splitlines())
    assert any(line.split()[:3] == ["min_gru_parallel", "parallel", "scan"] for line in kernels.splitlines())


def test_list_layers_and_kernels_are_json_on_request(here):
    rows = {row["layer"]: row for row in json.loads(here("list", "layers", "--json")[1])}
    assert rows["tcn"]["both ways"] is None and rows["gru"]["both ways"] == "bi_gru"
    assert all(row["description"] for row in rows.values())
    assert json.loads(here("list", "kernels", "--json")[1])[-1]["kernel"] == "any_loop"


def test_list_cells_groups_them_by_idea_and_fits_80_columns(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = here("list", "cells", "--hidden", "8")
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert "3(dh + h^2 + 2h)" in out and "one gate: one gate, or gates that share their weights" in out
    assert ["mgu", "2016", "A", "GRU", "whose"] in [line.split()[:5] for line in out.splitlines()]


@pytest.mark.parametrize("words", [["list", "layers"], ["list", "kernels"], ["doctor"]])
def test_tables_fit_80_columns(here, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = here(*words)
    assert code == 0 and max(map(len, out.splitlines())) <= 80


def test_a_table_that_is_too_wide_continues_below_with_its_first_column(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    console.show_table([{"model": "gru"} | {f"number {n}": n for n in range(5)}])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("m", "g"))] == ["model", "gru"] * 2
    assert max(map(len, lines)) <= 40


def test_a_table_that_is_too_wide_repeats_the_columns_that_identify_a_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    names = [(task, model) for task in ("add", "copy") for model in ("gru", "lstm")]
    rows = [{"task": task, "seeds": 3, "model": model} | {f"number {n}": n for n in range(4)} for task, model in names]
    console.show_table(rows)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines if line and line[0] in ("task", "add", "copy")][5:] == [
        ["task", "model"],
        *([task, model] for task, model in names),
    ]


def test_a_warning_continues_below_its_text():
    first, second = console.wrap(f"warning {'word ' * 8}".rstrip(), 40).split("\n")
    assert first.startswith("warning word") and second.startswith(" " * 8 + "word")


def test_prose_wraps_below_its_label_and_keeps_flags_and_commands_whole():
    flag = "--valid 0.3"
    text = f"note    {'word ' * 5}{flag} and `seqloom train my.csv` again\n\nseqloom train {'long ' * 12}"
    for width in range(24, 60):
        *wrapped, empty, command = console.wrap(text, width).split("\n")
        assert (empty, command) == ("", text.rsplit("\n", maxsplit=1)[-1])
        assert all(line.startswith(" " * 8) for line in wrapped[1:])
        assert any(flag in line for line in wrapped) and any("`seqloom train my.csv`" in line for line in wrapped)
        assert " ".join(" ".join(wrapped).split()) == " ".join(text.split("\n", maxsplit=1)[0].split())
        assert all(len(line) <= width or len(line.split("`")) == 3 for line in wrapped)


def test_prose_is_80_columns_wide_without_a_terminal(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    console.show_text("word " * 40)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "50")
    console.show_text("word " * 40)
    assert 40 < max(map(len, capsys.readouterr().out.splitlines())) <= 50


def test_doctor_passes_every_kernel(here):
    code, out, _ = here("doctor", "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (0, True)
    assert {"any_loop", "gru_aten", "any_scan"} <= {k["kernel"] for k in report["kernels"]}
    assert report["hardware"]["cores"] >= 1


def test_doctor_exits_with_1_if_a_kernel_is_wrong(here, monkeypatch):
    wrong = doctor.Verdict("gru_aten", "cpu", "", "FAILED: off by 1.0e-02")
    monkeypatch.setattr(doctor, "run_self_tests", lambda: [wrong])
    code, out, _ = here("doctor")
    assert code == 1
    assert "FAILED: off by 1.0e-02" in out
    code, out, _ = here("doctor", "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


@pytest.mark.slow
def test_compare_prints_the_table_on_stdout_the_log_on_stderr_and_leaves_a_report(here, tmp_path):
    lines = [f"{'nice fine' if i % 2 else 'poor sad'} {i},{'good' if i % 2 else 'bad'}\n" for i in range(120)]
    (tmp_path / "films.csv").write_text("text,label\n" + "".join(lines))
    words = [str(tmp_path / "films.csv"), "--models", "rnn,examples/my_cell.py:MyCell", *TINY, "--folds", "1"]
    out, err = command("compare", *words, "--out", str(tmp_path / "c"))
    assert any(line.startswith("my_cell.py:MyCell 1x") for line in out.splitlines())
    assert any(line.startswith("TF-IDF + logistic regression *") for line in out.splitlines())
    assert "percentage points." in out and max(map(len, out.splitlines())) <= 80
    assert "\nmy_cell.py:MyCell 1x" in err and ", learning rate 0.003, 9 steps: validation accuracy" in err
    assert "validation accuracy" not in out
    assert f"seqloom predict {tmp_path / 'c' / 'best'} NEW_FILE" in err
    files = {"report.html", "report.md", "study.json", "leaderboard.csv"}
    runs = {"best", "rnn", "my_cell.py-MyCell", "tf-idf-logistic-regression", "majority"}
    assert files | runs <= {f.name for f in (tmp_path / "c").iterdir()}
    best = Run.load(tmp_path / "c" / "best").settings.model
    assert f"\nUse {best} (accuracy 100.0%)" in out
    code, again, _ = here("compare", "--resume", "--out", str(tmp_path / "c"), "--json")
    report = json.loads(again)
    assert (code, report["finished"]) == (0, True)
    assert report["verdict"] in " ".join(out.split())  # printed in several lines
    assert {row["label"] for row in report["rows"]} > {"majority", "TF-IDF + logistic regression"}


def test_the_command_in_the_document_gives_the_same_settings():
    settings = CompareSettings(models="gru,my cells.py:Mine", budget="1h30m", seeds=2)
    words = shlex.split(shlex.join(["compare", *settings.to_flags()]))
    _, bound, *_ = main.app.parse_args(words)
    assert bound.arguments["settings"] == settings and settings.seconds == 5400


@pytest.mark.long
def test_ctrl_c_prints_the_table_so_far_and_exits_with_130(tmp_path):
    words = [sys.executable, "-m", "seqloom", "compare", "--models", "rnn", "--seeds", "500", "--steps", "9"]
    words += ["--workers", "1", "--out", str(tmp_path / "c")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("rnn 1x128, learning rate 0.003, seed 1, 9 steps"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        out = process.stdout.read()
    assert process.returncode == 130
    assert "Traceback" not in rest and f"continue with: seqloom compare --resume --out {tmp_path / 'c'}" in rest
    assert any(line.startswith("rnn ") for line in out.splitlines())
    assert "Interrupted: the table shows the results so far" in out
