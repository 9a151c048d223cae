"""Two processes make the steps of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqloom.run import Run

SCRIPT = """
import sys, torch
from seqloom.tasks.registry import open_task
from seqloom.train import train
from seqloom.train_settings import Train

torch.set_num_threads(1)
name, folder, more = sys.argv[1], sys.argv[2], eval(sys.argv[3])
options = {"text": dict(unit="characters", lookback=16), "reverse": dict(steps=5, valid=30, test=30)}
path = sys.argv[4] if name == "text" else name
settings = Train(**dict(hidden=8, embedding=8, dropout=0.0, batch=7, steps=12, validate_every=4, device="cpu") | more)
train(open_task(path, **options[name]), settings, folder, resume=True)
"""


def run(tmp_path, folder, processes, task="reverse", more=None):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"word{i * i % 17}" for i in range(400)))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(processes):
        env = dict(os.environ, SEQLOOM_CACHE=str(tmp_path / f"cache{rank}"), OMP_NUM_THREADS="1")
        if processes > 1:  # what torchrun sets
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
            env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-c", SCRIPT, task, str(tmp_path / folder), repr(more or {}), str(text)]
        started.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    for process in started:
        _, wrong = process.communicate(timeout=300)
        assert process.returncode == 0, wrong[-3000:]
    return Run.load(tmp_path / folder)


def assert_alike(two, one, tolerance=1e-5):
    torch.testing.assert_close(
        two.checkpoint("last").tensors("weights"), one.checkpoint("last").tensors("weights"), rtol=0, atol=tolerance
    )
    for a, b in zip(two.metrics(), one.metrics(), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=tolerance)
        if "train_loss" in b:
            assert a["train_loss"] == pytest.approx(b["train_loss"], abs=tolerance)


@pytest.mark.slow
def test_two_processes_end_with_the_losses_and_weights_of_one(tmp_path):
    """Batches of 7 rows with different numbers of targets: halves are never equal."""
    assert_alike(run(tmp_path, "two", 2), run(tmp_path, "one", 1))


@pytest.mark.slow
def test_two_processes_carry_their_own_states_and_accumulate(tmp_path):
    more = {"model": "lstm", "accumulate": 2, "batch": 5, "checkpoint_steps": 3}
    assert_alike(run(tmp_path, "two", 2, "text", more), run(tmp_path, "one", 1, "text", more))


@pytest.mark.slow
def test_a_process_without_rows_takes_part(tmp_path):
    assert_alike(run(tmp_path, "two", 2, more={"batch": 1}), run(tmp_path, "one", 1, more={"batch": 1}))


@pytest.mark.slow
def test_torchrun_starts_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [
        str(torchrun),
        "--nproc-per-node=2",
        "--standalone",
        str(script),
        "reverse",
        str(tmp_path / "two"),
        "{}",
    ]
    env = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", SEQLOOM_CACHE=str(tmp_path / "cache"))
    made = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert made.returncode == 0, made.stderr[-3000:]
    assert_alike(Run.load(tmp_path / "two"), run(tmp_path, "one", 1))
