"""Layers train in several processes as in one, and run in a fork."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from subjects import CALLED_IN_FORKS, TRAINED_IN_RANKS

HERE = Path(__file__).parent
RANKS = 2  # as in training_ranks.py
PATIENCE_SECONDS = 600  # of a process that waits for one that has died


def start(script, *arguments):
    command = [sys.executable, "-W", "ignore", str(HERE / script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_train_as_one_sharded_or_not(tmp_path):
    ranks = [start("training_ranks.py", rank, tmp_path / "store") for rank in range(RANKS)]
    outputs = [process.communicate(timeout=PATIENCE_SECONDS) for process in ranks]
    for process, (said, error) in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, error
        assert [line.split()[0] for line in said.splitlines()] == list(TRAINED_IN_RANKS)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_runs_as_its_parent():
    process = start("forked_calls.py")
    said, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, error
    assert [line.split()[0] for line in said.splitlines()] == list(CALLED_IN_FORKS)
