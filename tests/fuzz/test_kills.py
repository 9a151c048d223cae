"""A few kills; `make kills N=1000` does more."""

import os
import random
import signal
import subprocess
import sys

import pytest

from fuzz.kills import COMMANDS, choose_operations, contents, differences

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="operations are counted with the help of /proc")
SCRIPT = """
import os, shutil, sys
from pathlib import Path
from fuzz.file_operations import Kill, Watch
number, torn = int(sys.argv[1]), sys.argv[2] == "torn"
Watch(os.getcwd(), os.open("../operations.txt", os.O_WRONLY | os.O_CREAT), Kill(number, torn=torn)).start()
Path("folder").mkdir()
with Path("folder/file").open("w") as file:
    file.write("whole text")
    file.flush()
    os.fsync(file.fileno())
os.replace("folder/file", "folder/other")
Path("../outside").write_text("not counted")
print(Path("folder/other").read_text())
shutil.rmtree("folder")
"""
OPERATIONS = ["mkdir folder", "open folder/file", "write folder/file", "fsync folder/file", "rename folder/other"]
OPERATIONS += ["remove folder/other", "rmdir folder"]
LEFT = [[], ["folder"], *3 * [["file", "folder"]], ["folder", "other"], ["folder"], []]  # before each, and at the end


def python(*words, **options):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("number", range(len(OPERATIONS) + 1))
def test_a_process_dies_before_the_operation_of_that_number(number, tmp_path):
    (tmp_path / "case").mkdir()
    ended = python("-c", SCRIPT, str(number), "", cwd=tmp_path / "case")
    finished = number == len(OPERATIONS)
    assert ended.returncode == (0 if finished else -signal.SIGKILL), ended.stderr
    assert (tmp_path / "operations.txt").read_text().splitlines() == OPERATIONS[: number + 1]
    left = sorted(path.name for path in (tmp_path / "case").rglob("*"))
    assert left == LEFT[number]


def test_a_torn_write_is_half_of_it(tmp_path):
    (tmp_path / "case").mkdir()
    ended = python("-c", SCRIPT, "2", "torn", cwd=tmp_path / "case")
    assert ended.returncode == -signal.SIGKILL and (tmp_path / "case/folder/file").read_text() == "whole"


def test_different_operations_are_chosen_before_their_repetitions():
    operations = ["mkdir a", "write a/1", "write a/2", "write a/3", "rename b"]
    assert sorted(choose_operations(operations, 3, random.Random(0))) == [0, 1, 4]
    assert sorted(choose_operations(operations, 5, random.Random(0))) == [0, 1, 2, 3, 4]
    assert len(choose_operations(operations, 12, random.Random(0))) == 12


def test_missing_new_and_changed_files_are_reported_and_times_are_not(tmp_path):
    (tmp_path / "a.json").write_text('{"seconds": 1.5, "loss": 0.25}')
    (tmp_path / "weights").write_text("abc")
    before = contents(tmp_path)
    (tmp_path / "a.json").write_text('{"seconds": 2.5, "loss": 0.25}')
    assert differences(before, contents(tmp_path)) == []
    (tmp_path / "a.json").write_text('{"seconds": 1.5, "loss": 0.5}')
    (tmp_path / "weights").rename(tmp_path / ".weights.new")
    told = [".weights.new is left behind", "a.json has another content", "weights is missing"]
    assert differences(before, contents(tmp_path)) == told


@pytest.mark.slow
def test_commands_that_are_killed_end_as_if_nothing_had_happened(tmp_path, warm_python):
    assert sum(command.weight for command in COMMANDS.values()) == 100
    code = f"import runpy, sys; sys.path[:] = {sys.path}; runpy.run_module('fuzz.kills', run_name='__main__')"
    words = ["--cases", "20", "--commands", "train an own cell,predict a file"]
    ended = warm_python.run(code, *words, cwd=tmp_path, env=os.environ)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert [line.partition(";")[0] for line in ended.stdout.splitlines()] == [
        "train an own cell: 2 cases, seed 0: 0 wrong",
        "predict a file: 2 cases, seed 0: 0 wrong",
    ]
