import json
import math
import shlex
import sys
from functools import partial
from importlib.util import find_spec

import pytest
import torch

from seqloom import testing
from seqloom.cells.lookup import find_cell
from seqloom.cli import main
from seqloom.kernels.cpu.kernels import HAS_ONEDNN_LSTM
from seqloom.lab.bench import race
from seqloom.lab.bench.settings import BenchSettings
from seqloom.tools import doctor, timing

TINY = dict(cells="gru", hidden=8, batch=2, length=5, rounds=1)
WORDS = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
KEYS = {
    *("cell", "kernel", "library", "device", "dtype", "hidden", "batch", "length", "threads", "pass"),
    *("us_per_step", "ratio_to_gru", "graph_us_per_step", "graph_ratio_to_gru", "saved_bytes", "peak_bytes", "reason"),
}


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Skip the kernel checks unless a test is about them, use short rounds, and time no other package."""
    monkeypatch.setattr(race, "rivals", race.rivals.__wrapped__)  # not cached
    monkeypatch.setattr(race, "find_spec", lambda _: None)
    monkeypatch.setattr(timing, "ROUND", 0.001)
    monkeypatch.setattr(testing, "check_kernel", lambda *_: None)


def times(**settings):
    settings = BenchSettings(**TINY | settings)
    return list(race.time_layers(settings, {name: find_cell(name) for name in settings.cells}, lambda _: None))


@pytest.fixture
def here(capsys, monkeypatch):
    """Return a function that runs a command in this process: exit code, stdout, stderr."""
    monkeypatch.delenv("SEQLOOM_TRACEBACK", raising=False)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main.main(["bench", *words])
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.parametrize("ragged", [False, True])
def test_every_row_has_a_time_and_says_what_ran(ragged):
    rows = times(cells="attn_rnn,min_gru", batch=(1, 3), ragged=ragged)
    assert len(rows) == 2 * 2 * (2 + 3)
    for row in rows:
        assert row.as_dict().keys() == KEYS
        assert not row.reason
        assert math.isfinite(row.us_per_step) and row.us_per_step > 0
        assert (row.saved_bytes is None) == (row.pass_ == "forward")
    assert {"torch", "min_gru_parallel"} <= {row.kernel for row in rows}


def test_ratios_are_to_torchs_gru_of_the_same_shape_and_pass():
    rows = times(hidden=(8, 12))
    gru = {(row.hidden, row.pass_): row for row in rows if row.cell == race.GRU}
    assert len(gru) == 4 and all(row.ratio_to_gru == 1 for row in gru.values())
    for row in rows:
        assert row.ratio_to_gru == pytest.approx(gru[row.hidden, row.pass_].us_per_step / row.us_per_step)


def test_a_kernel_that_cannot_run_is_a_row_with_the_reason():
    rows = [row for row in times(cells="min_gru", kernels="loop,cpu,warp") if row.cell == "min_gru"]
    assert [row.kernel for row in rows] == ["any_loop", "cpu", "warp"] * 2
    assert rows[0].us_per_step and not rows[0].reason
    assert rows[2].us_per_step is None and rows[2].reason.startswith("no kernel 'warp' for cell 'min_gru'; it has:")


def test_a_hidden_size_that_a_cell_cannot_have_is_a_row_with_the_reason():
    first = times(cells="attn_rnn", hidden=10)[0]
    assert first.us_per_step is None and "multiple of heads" in first.reason


def test_auto_and_the_name_of_the_same_kernel_are_timed_once():
    rows = times(cells="gru", kernels="auto,cpu,gru_cpu")
    assert [row.kernel for row in rows if row.cell == "gru" and row.kernel != "torch"] == ["gru_cpu"] * 2


def test_a_kernel_whose_check_fails_is_not_timed(here, monkeypatch):
    calls = []

    def red(*args):
        calls.append(args)
        raise AssertionError("dx is 9.0 times as far\nfrom float64 as the loop")

    monkeypatch.setattr(testing, "check_kernel", red)
    words = ["--cells", "min_gru", "--kernels", "parallel,loop", "--batch", "1,2", "--hidden", "8", "--length", "5"]
    code, out, _ = here(*words, "--json")
    rows = json.loads(out)["rows"]
    refused = [row for row in rows if row["kernel"] == "min_gru_parallel"]
    assert code == 1
    assert len(refused) == 4 and len(calls) == 1
    for row in refused:
        assert row["reason"] == "check failed: dx is 9.0 times as far from float64 as the loop"
        assert row["us_per_step"] is row["ratio_to_gru"] is row["saved_bytes"] is None
    assert all(row["us_per_step"] for row in rows if row not in refused)


def test_torchs_own_kernels_are_checked_by_the_doctors_self_test(monkeypatch):
    monkeypatch.setattr(
        doctor, "run_self_test", lambda name, device: doctor.Verdict(name, device, "", "FAILED: off by 1")
    )
    row = times(kernels="aten")[0]
    assert (row.kernel, row.reason, row.us_per_step) == ("gru_aten", "check failed: off by 1", None)


@pytest.mark.slow
def test_the_check_is_the_real_one_where_nothing_is_replaced(monkeypatch):
    monkeypatch.undo()
    assert not times(cells="min_gru", kernels="parallel")[0].reason


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a torch without oneDNN")
def test_a_row_of_torch_names_the_library_that_ran():
    library = {row.cell: row.library for row in times(cells="min_gru")}
    lstm = library.pop("torch.nn.LSTM")
    assert lstm == "oneDNN" or (lstm == "ATen" and not HAS_ONEDNN_LSTM)  # on ARM it depends on the number of threads
    assert library == {"min_gru": "", "torch.nn.RNN": "ATen", "torch.nn.GRU": "ATen"}
    assert {row.library for row in times(cells="min_gru", ragged=True)} == {"", "ATen"}


@pytest.mark.parametrize("ragged", [False, True])
def test_other_libraries_have_a_row_where_they_are_installed(monkeypatch, request, tmp_path, ragged):
    (tmp_path / "torchrecurrent.py").write_text(
        "import torch\n"
        "class MGU(torch.nn.Linear):\n"
        "    def __init__(self, input_size, hidden_size, batch_first):\n"
        "        super().__init__(input_size, hidden_size)\n"
        "    def forward(self, x):\n"
        "        return super().forward(x), None\n"
    )
    (tmp_path / "flashrnn.py").write_text(
        "import torch\n"
        "def flashrnn(Wx, R, b, states=None, function='lstm', config=None, backend='cuda_fused', dtype='bfloat16'):\n"
        "    B, T, G, N, D = Wx.shape\n"
        "    assert (R.shape, b.shape) == ((G, N, D, D), (G, N, D))\n"
        "    assert (function, G, backend, dtype) == ('lstm', 4, 'vanilla', 'float32')\n"
        "    h = (Wx + b + torch.einsum('gnde->gnd', R)).sum(2)\n"
        "    return torch.stack([h, h]), torch.stack([h[:, -1:], h[:, -1:]])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(race, "find_spec", find_spec)
    for name in ("torchrecurrent", "flashrnn"):  # not left to the tests that follow
        monkeypatch.delitem(sys.modules, name, raising=False)
        request.addfinalizer(partial(sys.modules.pop, name, None))
    rows = [row for row in times(ragged=ragged) if not row.cell.startswith(("torch.nn", "gru"))]
    assert [(row.cell, row.kernel) for row in rows] == 2 * [
        ("torchrecurrent.MGU", "torch"),
        ("flashrnn.LSTM", "vanilla"),
    ]
    for row in rows:
        assert row.us_per_step > 0
        assert row.reason == ("does not support lengths: computes the padding too" if ragged else "")


def test_the_document_is_on_stdout_and_the_progress_on_stderr(here):
    code, out, err = here(*WORDS, "--json")
    actual = json.loads(out)
    assert (code, actual["finished"]) == (0, True)
    assert {"command", "date", "settings", "versions", "hardware", "rows"} <= actual.keys()
    assert len(err.splitlines()) == len(actual["rows"]) == 8


def test_the_table_says_how_it_was_made(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # a narrower table is divided, by the width of the times
    code, out, _ = here(*WORDS, "--dtype", "float32,float64", "--ragged")
    assert code == 0
    heading = " ".join(out.split("\n")[0].split())
    assert heading == "cell kernel dtype H B T pass us/step x nn.GRU saved MB"
    assert "denormals flushed" in out and "padded for torch.nn" in out
    assert out.rstrip().endswith("--ragged")


def test_the_command_in_the_document_gives_the_same_settings():
    settings = BenchSettings(cells="gru,my cells.py:Mine", hidden=(8, 16), threads=[1, 2], ragged=True)
    _, *words = shlex.split(settings.command())
    assert main.app.parse_args(words)[1].arguments["settings"] == settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hidden", "0"], "--hidden must be at least 1, got '0'"),
        (["--batch", "1,many"], "--batch must be a whole number, got"),
        (["--cells", ","], "--cells: name at least one"),
        (["--cells", "gur"], "unknown cell 'gur'; did you mean 'gru'?"),
        (
            ["--plot", "b.xyz"],
            "seqloom: --plot: the file name of a chart must end in .svg, .png or .pdf, got 'b.xyz'\n",
        ),
        (["--dtype", "tf32"], "tf32 works on GPUs only; use --dtype float32 or --device cuda"),
        (["--dtype", "int8"], "'float32', 'float64', 'bfloat16', 'float16' or 'tf32'"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(here, words, message):
    code, out, err = here(*words)
    assert (code, out) == (2, "")
    assert err.startswith("seqloom: ") and err.count("\n") == 1
    assert message in err


def test_a_plot_is_drawn(here, tmp_path):
    file = tmp_path / "speed.svg"
    code, out, err = here(*WORDS, "--plot", str(file))
    assert code == 0 and "us/step" in out and str(file) in err
    assert "torch.nn.GRU" in file.read_text()


@pytest.mark.parametrize("name", ["speed.txt", "nowhere/speed.svg"])
def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_timed(here, tmp_path, name):
    code, out, err = here(*WORDS, "--plot", str(tmp_path / name))
    assert code == 2 and not out and len(err.strip().splitlines()) == 1
