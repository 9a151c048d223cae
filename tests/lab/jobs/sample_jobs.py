"""Jobs for the tests of the engine, found by name from any process."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_info

from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.train import train


def numbers(n, folder):
    """Return numbers that depend on the threads and the random state only."""
    x = torch.rand(1000, n)
    blas = [pool["num_threads"] for pool in threadpool_info()]
    threads = {"threads": torch.get_num_threads(), "most of any library": max(blas, default=1)}
    drawn = {"sum": x.sum().item(), "numpy": np.random.random()}
    return {"n": n, **drawn, "denormals": (x[0] * 1e-39).count_nonzero().item(), **threads}


def who(folder):
    return {"pid": os.getpid()}


def wrong(folder):
    raise ValueError("the data is empty\nand more")


def not_json(folder):
    return {"value": torch.ones(1)}


def killed(times, folder):
    """Count to 5 with a checkpoint at each number; kill the process at 3, a given number of times."""
    counted = _lines(folder)
    deaths = sum(1 for line in counted if line == "dead")
    for number in range(len(counted) - deaths, 5):
        if number == 3 and deaths < times:
            _add(folder, "dead")
            os.kill(os.getpid(), signal.SIGKILL)
        _add(folder, str(number))
    return {"counted": [line for line in _lines(folder) if line != "dead"]}


def steps(count, seconds, folder):
    """Write a line with the process id for each step; continue after the last line."""
    for step in range(len(_lines(folder)), count):
        time.sleep(seconds)
        _add(folder, json.dumps([step, os.getpid()]))
    return {"steps": [json.loads(line)[0] for line in _lines(folder)]}


def meet(place, folder, patience=300.0):
    """Wait until two jobs run at the same time; fail if the other one does not come."""
    there, end = Path(place), time.monotonic() + patience
    there.mkdir(parents=True, exist_ok=True)
    (there / folder.name).touch()
    while len(list(there.iterdir())) < 2:
        if time.monotonic() > end:
            raise RuntimeError("nobody came")
        time.sleep(0.01)
    return {"pid": os.getpid()}


def training(seed, folder, steps=30):
    """Run a small training that continues from its checkpoint."""
    torch.set_flush_denormal(True)
    settings = TrainSettings(
        steps=steps, validate_every=10, checkpoint_steps=5, hidden=8, embedding=4, seed=seed, device="cpu"
    )
    run = train(open_task("pattern", steps=10, valid=20, test=20), settings, folder / "run", resume=True)
    return {"test": [line for line in run.metrics() if line.get("split") == "test"][-1]["loss"]}


def _lines(folder):
    file = folder / "lines.txt"
    return file.read_text().splitlines() if file.exists() else []


def _add(folder, line):
    with (folder / "lines.txt").open("a") as file:
        file.write(line + "\n")


def ranks(folder):
    """Run in several processes under torchrun."""
    from seqloom.lab.training.distributed import join_processes

    with join_processes(torch.device("cpu")) as together:
        return {"sum": int(together.sum(torch.tensor(together.rank))), "count": together.count}
