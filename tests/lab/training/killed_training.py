"""Kill a training (SIGKILL) at random moments and while it saves, and resume it until it is done.

    python killed_training.py FOLDER KILLS

Whatever the moment, what lies on the disk must be whole. Prints one line of JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from seqloom.lab.data.registry import open_task
from seqloom.lab.files import checkpoint
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.run import Run
from seqloom.lab.training.train import train

torch.set_num_threads(1)
SETTINGS = TrainSettings(
    steps=60, validate_every=10, checkpoint_steps=1, hidden=12, embedding=8, dropout=0.3, ema=0.9, batch=8, device="cpu"
)


def child(folder: Path) -> int:
    """Start a process that trains or resumes."""
    number = os.fork()
    if number:
        return number
    task = open_task("pattern", steps=10, valid=20, test=20)
    train(task, SETTINGS, folder, resume=True)
    os._exit(0)


def check(folder: Path) -> None:
    """Check that no file in the folder is half-written."""
    if not (folder / "run.json").exists():
        return
    run = Run.load(folder)
    assert run.task.kind == "classify"
    for which in ("last", "best"):
        actual = checkpoint.find(folder / which)
        if (folder / which).exists():
            assert actual is not None and actual.folder == folder / which
        if actual is not None:
            assert actual.tensors("weights") and actual.tensors("training")
    steps = [line["step"] for line in run.metrics() if line["split"] == "valid"]  # the test's is that of the best
    assert steps == sorted(set(steps))


def is_saving(folder: Path) -> bool:
    """Return whether a checkpoint is being written."""
    return any(p.suffix in (".new", ".old") for p in folder.glob("*"))


def stop_while_saving(number: int, folder: Path) -> None:
    """Stop the process while it saves; return without it if the process ends first."""
    while os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if is_saving(folder):
            os.kill(number, signal.SIGSTOP)
            if is_saving(folder):  # it had not finished in between
                return
            os.kill(number, signal.SIGCONT)


def main(folder: Path, kills: int) -> None:
    train(open_task("pattern", steps=10, valid=20, test=20), SETTINGS, folder / "whole")
    chance, done, saving = random.Random(), 0, 0
    while done < kills:
        number = child(folder / "killed")
        if done % 2:
            stop_while_saving(number, folder / "killed")
        else:
            time.sleep(chance.uniform(0.01, 0.25))
        if os.waitpid(number, os.WNOHANG)[0]:
            # it was done before the kill: the folder is whole, and the next one starts anew
            assert Run.load(folder / "killed").finished
            (folder / "killed").rename(folder / f"done{done}.{time.monotonic_ns()}")
            continue
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        done += 1
        saving += is_saving(folder / "killed")
        check(folder / "killed")
    _, status = os.waitpid(child(folder / "killed"), 0)
    assert status == 0
    print(json.dumps({"kills": done, "while_saving": saving}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
