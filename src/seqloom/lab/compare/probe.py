"""How fast each model trains here, measured shortly before a budget is planned."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from seqloom.lab.compare.data import opened
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.files import scratch
from seqloom.lab.training import checkpoint
from seqloom.lab.training.cpu import use_one_thread
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.model import build
from seqloom.lab.training.settings import TrainSettings
from seqloom.lab.training.step import Stepper
from seqloom.lab.training.step_state import stepper_tensors
from seqloom.lab.training.train import choose_device

LOOKED = 400  # batches that are looked at for lengths
ADAM = 4  # a weight, its gradient and two averages
LEAST = 1  # steps that are timed


@dataclass(frozen=True)
class Facts:
    """Sizes of a task that times follow from; steps of a batch have padding in them."""

    batches: int | None  # of an epoch; none where there is no end
    length: int  # of a usual sequence
    train: float  # steps of a training batch, on average
    valid: float  # steps of all validation batches
    test: float


def facts(task: Task, batch: int) -> Facts:
    looked = list(islice(task.batches("train", batch=batch), LOOKED))
    length = int(median(int(n) for one in looked for n in one.lengths.tolist()))
    steps = [float(one.x.shape[0] * one.x.shape[1]) for one in looked]
    return Facts(
        task.count("train", batch=batch),
        length,
        sum(steps) / len(steps),
        _steps(task, "valid", batch),
        _steps(task, "test", batch),
    )


def _steps(task: Task, split: str, batch: int) -> float:
    """Of so many batches that are looked at, spread evenly, as if they were all."""
    every = max(1, (task.count(split, batch=batch) or 0) // LOOKED)
    seen = [one.x.shape[0] * one.x.shape[1] for one in islice(task.batches(split, batch=batch), 0, None, every)]
    return float(sum(seen) * every)


def probe(
    source: Mapping[str, Any], settings: Mapping[str, Any], steps: Mapping[str, Any], seconds: float, folder: Path
) -> dict[str, Any]:
    """Seconds of a step, of a validation, of the test; bytes that training holds. `steps` are the task's facts."""
    task, chosen, known = opened(source), TrainSettings(**settings), Facts(**steps)
    device = choose_device(chosen)
    with use_one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(chosen.seed)
        stepper = Stepper(build(task, chosen).to(device), chosen, ProcessGroup())
        epochs = (task.batches("train", **chosen.sizes, seed=chosen.seed, epoch=epoch) for epoch in count())
        batches = chain.from_iterable(epochs)
        memory = _memory(stepper, next(batches))
        spent, walked = 0.0, 0.0
        for number, batch in enumerate(batches):
            began = time.perf_counter()
            stepper.step([batch], number, chosen.lr)
            if number:  # the first one is slower
                spent, walked = spent + time.perf_counter() - began, walked + batch.x.shape[0] * batch.x.shape[1]
            if number >= LEAST and spent > seconds:
                break
        forward = _forward(stepper, task, known, seconds / 4)
        return {
            "step": spent / max(1.0, walked) * known.train,
            "valid": forward * known.valid + _saving(stepper, folder),
            "test": forward * known.test,
            "memory": memory,
            "facts": asdict(known),
        }


def _memory(stepper: Stepper, batch: Batch) -> int:
    """Weights, gradients and averages, and what one batch leaves for the way back."""
    from seqloom.tools.measure import kept_bytes, parameters

    if stepper.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        stepper.step([batch], 0, 0.0)
        return torch.cuda.max_memory_allocated()
    kept = kept_bytes(lambda: stepper.step([batch], 0, 0.0), *stepper.model.parameters())
    return ADAM * 4 * parameters(stepper.model) + kept


@torch.no_grad()
def _forward(stepper: Stepper, task: Task, known: Facts, seconds: float) -> float:
    """Seconds of a step of validation; batches come by length, so those in the middle are looked at."""
    middle = (task.count("valid", **stepper.settings.sizes) or 1) // 2
    stepper.model.eval()
    spent, walked = 0.0, 0.0
    for batch in task.batches("valid", **stepper.settings.sizes, skip=middle):
        began = time.perf_counter()
        stepper.model.scores(batch.to(stepper.device))
        spent, walked = spent + time.perf_counter() - began, walked + batch.x.shape[0] * batch.x.shape[1]
        if spent > seconds:
            break
    return spent / max(1.0, walked)


def _saving(stepper: Stepper, folder: Path) -> float:
    """Seconds of the checkpoints after a validation, written to the disk that runs are on."""
    weights, training = stepper_tensors(stepper, [])
    began = time.perf_counter()
    with scratch.make_folder(folder / "saving") as place:
        checkpoint.write(place / "last", {}, weights=weights, training=training)
    return 2 * (time.perf_counter() - began)
