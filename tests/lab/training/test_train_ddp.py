"""Two processes train as one does."""

import os
import socket
import sys

import pytest
import torch

from seqloom.lab.training.run import Run

SCRIPT = """
import os, sys, torch
from seqloom.lab.data.registry import open_task
from seqloom.lab.training.train import train
from seqloom.lab.kinds.settings import TrainSettings

torch.set_num_threads(1)
name, folder, more, path = sys.argv[1], sys.argv[2], eval(sys.argv[3]), sys.argv[4]
options = {"text": dict(unit="characters", lookback=16), "reverse": dict(steps=5, valid=30, test=30)}
small = dict(hidden=8, embedding=8, dropout=0.0, batch=7, steps=12, validate_every=4, device="cpu")
settings = TrainSettings(**small | more)


def run():
    train(open_task(path if name == "text" else name, **options[name]), settings, folder, resume=True)
"""
# Both from one process, which has loaded everything already.
FORK = """
import torch._dynamo  # by the first step of an optimizer
children = []
for rank in range(2):
    children.append(os.fork())
    if not children[-1]:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "SEQLOOM_CACHE": f"{folder}-cache{rank}"}
        run()
        os._exit(0)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def run(tmp_path, monkeypatch, folder, task="reverse", more=None):
    """Train in this process."""
    (tmp_path / "text.txt").write_text("\n".join(f"word{i * i % 17}" for i in range(400)))
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["", task, str(tmp_path / folder), repr(more or {}), str(tmp_path / "text.txt")])
    exec(SCRIPT + "run()", {})
    return Run.load(tmp_path / folder)


def run_two(python, tmp_path, folder, task="reverse", more=None):
    """Train in two processes, started as torchrun does."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    env |= {"GLOO_SOCKET_IFNAME": "lo"}
    words = [task, str(tmp_path / folder), repr(more or {}), str(tmp_path / "text.txt")]
    made = python.run(SCRIPT + FORK, *words, cwd=tmp_path, env=env)
    assert made.returncode == 0, made.stderr[-3000:]
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
def test_two_processes_end_with_the_losses_and_weights_of_one(tmp_path, monkeypatch, warm_python):
    """Batches of 7 rows with different numbers of targets: halves are never equal."""
    one = run(tmp_path, monkeypatch, "one")
    assert_alike(run_two(warm_python, tmp_path, "two"), one)


@pytest.mark.long
def test_two_processes_carry_their_own_states_and_accumulate(tmp_path, monkeypatch, warm_python):
    more = {"model": "lstm", "accumulate": 2, "batch": 5, "checkpoint_steps": 3}
    one = run(tmp_path, monkeypatch, "one", "text", more)
    assert_alike(run_two(warm_python, tmp_path, "two", "text", more), one)


@pytest.mark.slow
def test_a_process_without_rows_takes_part(tmp_path, monkeypatch, warm_python):
    one = run(tmp_path, monkeypatch, "one", more={"batch": 1})
    assert_alike(run_two(warm_python, tmp_path, "two", more={"batch": 1}), one)
