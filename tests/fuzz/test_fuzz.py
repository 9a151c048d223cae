"""Some cases of each kind; `make fuzz N=10000` runs more."""

import os
import random
import signal

import pytest

from fuzz import cache_files, cells, data_files, layers, run_folders
from fuzz.cases import run_in_forks
from seqloom.core.errors import UserError
from seqloom.kernels.compiled import run
from seqloom.lab.data.registry import open_task


@pytest.mark.parametrize("name", sorted(data_files.samples()))
def test_a_file_that_was_not_changed_opens(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / name).write_bytes(data_files.samples()[name])
    if name.endswith(".wav"):
        pytest.skip("one recording is no data set")
    assert next(iter(open_task(tmp_path / name).batches("train", batch=4))).x.numel()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of readers, about what is damaged
@pytest.mark.parametrize("part", range(4))
def test_mutated_data_files_are_taken_or_refused_in_one_line(part, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    results = {data_files.check(random.Random(f"{part} {n}"), tmp_path) for n in range(60)}
    assert results == {"taken", "refused"}


@pytest.mark.slow
def test_mutated_run_folders_never_give_another_prediction(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    results = {run_folders.check(random.Random(n), tmp_path) for n in range(200)}
    assert {"refused", "same", "warned"} >= results >= {"refused"}


@pytest.mark.slow
def test_random_layers_match_the_loop():
    names = {layers.check(random.Random(n), None) for n in range(120)}
    assert names == set(layers.CELLS)


@pytest.mark.slow
def test_random_cells_match_the_loop_when_they_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    results = [cells.check(random.Random(f"cells 0 {n}"), tmp_path) for n in range(4)]
    assert set(results) <= {"compiled", "refused"} and results.count("compiled") > 2


def test_a_random_cell_that_differs_is_found(tmp_path, monkeypatch):
    backward = run._run_backward
    monkeypatch.setattr(run, "_run_backward", lambda *args: [g if g is None else g * 1.01 for g in backward(*args)])
    with pytest.raises(cells.MismatchError, match="gradient of"):
        cells.check(random.Random("cells 0 0"), tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_case_that_crashes_its_process_is_counted_and_the_others_run():
    def check(number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "fine"

    results = list(run_in_forks(check, iter(range(4))))
    assert [(r.number, r.outcome) for r in results] == [(0, "fine"), (1, ""), (2, "fine"), (3, "fine")]
    assert "signal 9" in results[1].error


@pytest.mark.slow
def test_a_changed_cache_never_gives_another_result(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "state"))
    results = {cache_files.check(random.Random(n), tmp_path) for n in range(60)}
    assert "sign_numbers: built again" in results and "change_owner: built again" in results


def test_an_npz_file_with_a_password_is_refused_in_one_line(tmp_path):
    data = bytearray(data_files.samples()["a.npz"])
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags of every entry, in both of its records
        at = data.find(mark)
        while at >= 0:
            data[at + flags] |= 1
            at = data.find(mark, at + 1)
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(UserError, match=r"a\.npz: is encrypted, or damaged"):
        open_task(tmp_path / "a.npz")
