"""Some cases of each kind; `make fuzz N=10000` runs more."""

import faulthandler
import json
import os
import random
import signal
import sys
import time

import numpy as np
import pytest

from fuzz import (
    cache_files,
    cases,
    cells,
    comparisons,
    data_files,
    exported_folders,
    file_cases,
    forged_runs,
    layers,
    run_folders,
)
from seqloom.core.errors import UserError
from seqloom.kernels.compiled import run
from seqloom.lab.data.readers import compression
from seqloom.lab.data.readers.table import BY_SUFFIX
from seqloom.lab.data.registry import open_task
from witness import WITNESS


def test_every_format_that_is_read_has_cases():
    assert {*BY_SUFFIX, *compression.SUFFIXES} <= set(file_cases.MAKERS)


@pytest.mark.parametrize("form", file_cases.list_formats())
def test_cases_of_every_format_are_partly_good_and_partly_damaged(form):
    if form in (".parquet", ".arrow", ".feather", ".ipc", ".wav", ".xls"):
        good = [file_cases.make_case(random.Random(n), form).columns is not None for n in range(90)]
    else:
        good = [file_cases.make_case(random.Random(n), form).is_valid for n in range(25 if form == ".npz" else 60)]
    assert any(good) and not all(good)


@pytest.mark.slow
def test_data_files_of_every_format_are_read_right_or_refused_in_one_line(tmp_path, warm_python):
    record = run_fuzz(warm_python, tmp_path / "record.json", "data_files", 16)
    assert record["seed"] == 5 and record["kinds"]["data_files"]["cases"] == 16
    assert record["kinds"]["data_files"]["failures"] == []
    assert {outcome.rpartition(" ")[2] for outcome in record["kinds"]["data_files"]["outcomes"]} == {"read", "refused"}


def run_fuzz(python, path, kind, cases):
    """Run cases in a process of their own: this one has used polars, so that it cannot be forked."""
    code = f"import runpy, sys; sys.path[:] = {sys.path}; runpy.run_module('fuzz', run_name='__main__')"
    words = ["--kinds", kind, "--cases", str(cases), "--seed", "5", "--json", str(path)]
    python.run(code, *words, cwd=path.parent, env=os.environ)
    return json.loads(path.read_text())


def print_panic():
    os.write(2, b"thread 'x' panicked at src/lib.rs:1\n")
    return "fine"


def abort():
    faulthandler.disable()  # pytest's, which would print where
    os.abort()


ENDINGS = {
    "fine": (lambda: "fine", ""),
    "an exception": (lambda: 1 / 0, "ZeroDivisionError"),
    "an abort": (abort, "signal 6"),
    "too much memory": (lambda: bytes(1 << 40), "MemoryError"),
    "a hang": (lambda: time.sleep(3600), "signal 9"),
    "a panic in another language": (print_panic, "panicked at"),
    "a death": (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9"),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.parametrize("work", ENDINGS)
def test_every_way_in_which_a_case_ends_is_noticed_and_the_others_run(work, monkeypatch):
    monkeypatch.setattr(cases, "LONGEST", 0.5 if work == "a hang" else 600.0)
    act, expected = ENDINGS[work]
    results = list(cases.run_in_forks(lambda number: act() if number == 1 else "fine", iter(range(4))))
    assert [r.number for r in results] == [0, 1, 2, 3]
    assert [bool(r.error) for r in results] == [False, bool(expected), False, False]
    assert expected in results[1].error


@pytest.mark.parametrize(
    ("actual", "expected"),
    [([1.0], ["2"]), (["a"], ["b"]), ([None], ["a"]), ([[1.0]], ["[2]"]), ([1.0], [None]), ([1.0, 2.0], [1.0])],
)
def test_a_column_that_was_read_wrongly_is_noticed(actual, expected):
    assert data_files.find_difference({"x": actual}, {"x": expected}).startswith("column 'x'")
    assert data_files.find_difference({}, {"x": expected}).startswith("column 'x' was not read")


@pytest.mark.slow
def test_mutated_run_folders_never_give_another_prediction(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    results = {run_folders.check(random.Random(n), tmp_path) for n in range(40)}
    assert {"refused", "same", "warned"} >= results >= {"refused"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [forged_runs, comparisons, exported_folders])
def test_folders_with_digests_made_right_are_used_or_refused_in_one_line(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv(WITNESS, str(tmp_path / "witness"))
    results = {kind.check(random.Random(n), tmp_path) for n in range(10)}
    assert results == {"used", "refused"}


@pytest.mark.slow
def test_random_layers_match_the_loop():
    names = {layers.check(random.Random(n), None) for n in range(80)}
    assert names == set(layers.CELLS)


@pytest.mark.slow
def test_random_cells_match_the_loop_when_they_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    results = [cells.check(random.Random(f"cells 0 {n}"), tmp_path) for n in range(3)]
    assert set(results) <= {"compiled", "refused"} and results.count("compiled") > 1


def test_a_random_cell_that_differs_is_found(tmp_path, monkeypatch):
    backward = run._run_backward

    def scale(*args):
        found = backward(*args)
        return found._replace(weights=[g if g is None else g * 1.01 for g in found.weights])

    monkeypatch.setattr(run, "_run_backward", scale)
    with pytest.raises(cells.MismatchError, match="gradient of"):
        cells.check(random.Random("cells 0 0"), tmp_path)


@pytest.mark.slow
def test_a_changed_cache_never_gives_another_result(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "state"))
    results = {cache_files.check(random.Random(n), tmp_path) for n in range(16)}
    assert "sign_numbers: built again" in results and "change_owner: built again" in results


def test_an_npz_file_with_a_password_is_refused_in_one_line(tmp_path):
    np.savez(tmp_path / "plain.npz", x=np.zeros((40, 5, 2)), y=np.arange(40) % 2)
    data = bytearray((tmp_path / "plain.npz").read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags of every entry, in both of its records
        at = data.find(mark)
        while at >= 0:
            data[at + flags] |= 1
            at = data.find(mark, at + 1)
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(UserError, match=r"a\.npz: is encrypted, or damaged"):
        open_task(tmp_path / "a.npz")
