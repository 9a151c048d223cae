"""Nothing is shared while it is written, and nothing stays behind when its process is killed."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from seqloom.lab.data.registry import open_task
from seqloom.lab.files import scratch
from seqloom.lab.files.scratch import write_atomically
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.fit import train_new
from seqloom.lab.training.run import Run


def dead_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_two_names_for_one_file_differ(tmp_path):
    assert scratch.choose_name(tmp_path / "a") != scratch.choose_name(tmp_path / "a")


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    gone, alive = dead_process(), os.getppid()
    left = [tmp_path / f".a.csv.{scratch._HOST}-{gone}-0.new", tmp_path / f".b.{scratch._HOST}-{gone}-3.new"]
    left[0].write_text("half")
    left[1].mkdir()
    (left[1] / "file").write_text("half")
    others = [
        tmp_path / f".a.csv.{scratch._HOST}-{alive}-0.new",  # a process that lives
        scratch.choose_name(tmp_path / "a.csv"),  # this one
        tmp_path / f".a.csv.elsewhere-{gone}-0.new",  # of another machine
        tmp_path / ".a.csv.new",
        tmp_path / "a.csv",
    ]
    for other in others:
        other.write_text("whole")
    with write_atomically(tmp_path / "c.csv") as work:
        work.write_text("new")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*(p.name for p in others), "c.csv"])


def test_what_an_earlier_process_of_the_same_number_left_is_removed(tmp_path):
    """A container that is restarted has the same name, and its processes have the same numbers."""
    left = tmp_path / f".run.{scratch._HOST}-{os.getpid()}-00000000-0.new"
    left.mkdir()
    Run.create(tmp_path / "run", TrainSettings(), open_task("adding", steps=5))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_what_cannot_be_removed_stays_and_the_file_is_written(tmp_path, monkeypatch):
    """In a folder like /tmp another user's files cannot be removed."""
    left = tmp_path / f".a.csv.{scratch._HOST}-{dead_process()}-0.new"
    left.write_text("half")

    unlink = os.unlink

    def refuse(path):
        if str(path) == str(left):
            raise PermissionError(path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    with write_atomically(tmp_path / "a.csv") as work:
        work.write_text("new")
    assert left.exists() and (tmp_path / "a.csv").read_text() == "new"


@pytest.mark.parametrize(("folder", "is_direct"), [("/dev", True), ("/dev/fd", True), ("/dev/shm", False)])
def test_streams_are_written_directly_and_shared_memory_is_not(folder, is_direct):
    if not os.access(folder, os.W_OK):
        pytest.skip(f"{folder} cannot be written to")
    file = Path(folder, f"seqloom-{os.getpid()}" if folder == "/dev/shm" else "1")
    try:
        with write_atomically(file) as work:
            assert (work == file) is is_direct
            if not is_direct:
                work.write_text("new")
    finally:
        if not is_direct:
            file.unlink()


def test_a_temporary_folder_belongs_to_the_user_and_is_removed(tmp_path):
    with scratch.make_folder(tmp_path / "new" / "stdin") as folder:
        assert folder.parent == tmp_path / "new" and folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert not any((tmp_path / "new").iterdir())


def test_of_several_processes_that_start_one_run_one_succeeds(tmp_path, monkeypatch):
    task, folder, results = open_task("adding", steps=5), tmp_path / "run", []
    together = threading.Barrier(6)
    save = type(task).save

    def save_together(self, place):
        together.wait()  # all have found the folder free
        save(self, place)

    monkeypatch.setattr(type(task), "save", save_together)

    def make(number):
        try:
            results.append(Run.create(folder, TrainSettings(seed=number), task).settings.seed)
        except ValueError as error:
            results.append(str(error))

    threads = [threading.Thread(target=make, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [r for r in results if isinstance(r, int)]
    assert Run.load(folder).settings.seed == winner
    assert [r for r in results if r != winner] == [
        f"{folder} already holds a run; resume it, or choose another name"
    ] * 5
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_second_training_leaves_the_first_one_alone(tmp_path, monkeypatch):
    """Both saw that the name was free; the second must not delete the folder of the first."""
    task, folder = open_task("adding", steps=5), tmp_path / "run"
    choose = scratch.choose_name

    def choose_late(path):
        monkeypatch.setattr(scratch, "choose_name", choose)
        Run.create(folder, TrainSettings(seed=1), task)
        return choose(path)

    monkeypatch.setattr(scratch, "choose_name", choose_late)
    with pytest.raises(ValueError, match="already holds a run"):
        train_new(task, TrainSettings(seed=2, steps=1), folder, None)
    assert Run.load(folder).settings.seed == 1


def test_a_process_that_is_killed_while_it_makes_a_run_leaves_the_name_free(tmp_path):
    code = f"""
import os, signal
from seqloom.lab.training.run import Run
from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.files import checkpoint
checkpoint.sync_files = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
Run.create({str(tmp_path / "run")!r}, TrainSettings(), open_task("adding", steps=5))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert not (tmp_path / "run").exists() and len(list(tmp_path.iterdir())) == 1
    Run.create(tmp_path / "run", TrainSettings(), open_task("adding", steps=5))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("there", ["a file", "other files"])
def test_a_run_never_replaces_other_files(tmp_path, there):
    place = tmp_path / "run"
    if there == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "mine").write_text("mine")
    with pytest.raises(ValueError, match="holds files that are not a run"):
        Run.create(place, TrainSettings(), open_task("adding", steps=5))
    assert (place if there == "a file" else place / "mine").read_text() == "mine"


def test_a_temporary_name_tells_the_final_one(tmp_path):
    file = tmp_path / "a.csv"
    assert scratch.find_final_name(scratch.choose_name(file)) == file
    assert scratch.find_final_name(scratch.choose_name(file) / "inside" / "x") == file
    assert scratch.find_final_name(file) is None
