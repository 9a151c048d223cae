"""How long a prediction takes, for one sequence and for 64."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.compare.data import opened
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.training.cpu import use_one_thread
from seqloom.lab.training.for_task import ForTask
from seqloom.lab.training.run import Run
from seqloom.lab.training.train import choose_device

MANY = 64
SECONDS, TIMES = 0.15, 3  # at least


def latency(source: Mapping[str, Any], run: str, folder: Path) -> dict[str, Any]:
    """Of a run's best weights; one thread on a CPU."""
    made = Run.load(run)
    with use_one_thread(), torch.random.fork_rng(devices=[]):
        return timed(made.model("best", str(choose_device(made.settings))), opened(source))


@torch.no_grad()
def timed(model: ForTask, task: Task) -> dict[str, float]:
    """Seconds; the rows are of a middling length."""
    middle = (task.count("test", batch=MANY) or 1) // 2
    device = next(model.parameters()).device
    many = next(iter(task.batches("test", batch=MANY, skip=middle))).to(device)
    one = many.part(len(many) // 2, len(many))
    return {"one": _seconds(model, one), "many": _seconds(model, many) * MANY / len(many)}


def _seconds(model: ForTask, batch: Batch) -> float:
    """The median, after one that warms up."""
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < TIMES + 1 or time.perf_counter() - began < SECONDS:
        start = time.perf_counter()
        model.predict(batch)
        if batch.x.is_cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
        if len(taken) > 1 and time.perf_counter() - began > 10 * SECONDS:
            break
    return sorted(taken[1:])[len(taken[1:]) // 2]
