"""Some cases of each kind; `make fuzz N=10000` runs more."""

import random

import pytest

from fuzz import cells, comparisons, data_files, exported_folders, forged_runs, layers, run_folders
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
@pytest.mark.parametrize("kind", [forged_runs, comparisons, exported_folders])
def test_folders_with_digests_made_right_are_used_or_refused_in_one_line(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("SEQLOOM_CANARY", str(tmp_path / "canary"))
    results = {kind.check(random.Random(n), tmp_path) for n in range(40)}
    assert results == {"used", "refused"}


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
