"""Speed measurements: training speed, from which a budget is planned, and prediction latency."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from seqloom.lab.compare.cells import load_copy
from seqloom.lab.compare.data import load_task, take_middle
from seqloom.lab.compare.row_scores import MOST_DECODED
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.files import checkpoint, scratch
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.model import build
from seqloom.lab.training.run import Run
from seqloom.lab.training.step import Stepper, stepper_tensors
from seqloom.lab.training.train import choose_device
from seqloom.tools.measure import kept_bytes, parameters

SAMPLED_BATCHES = 400  # batches whose lengths are read
ADAM_COPIES = 4  # a weight, its gradient and two moving averages
FEWEST_STEPS = 1  # timed training steps
LATENCY_BATCH = 64
LATENCY_SECONDS, LATENCY_CALLS = 0.15, 3  # a latency is measured for at least so long and so often


@dataclass(frozen=True)
class TaskSize:
    """Sizes of a task from which times are estimated. A time step of a batch counts once per row, including padding."""

    batches: int | None  # batches per epoch; None if the split is endless
    length: int  # median length of a sequence
    train: float  # time steps of a training batch, on average
    valid: float  # time steps of all validation batches
    test: float


def measure_task(task: Task, batch: int) -> TaskSize:
    sample = list(islice(task.batches("train", batch=batch), SAMPLED_BATCHES))
    length = int(median(int(n) for one in sample for n in one.lengths.tolist()))
    return TaskSize(
        task.count("train", batch=batch),
        length,
        sum(_time_steps(one) for one in sample) / len(sample),
        _estimate_time_steps(task, "valid", batch),
        _estimate_time_steps(task, "test", batch),
    )


def _time_steps(batch: Batch) -> float:
    return float(batch.x.shape[0] * batch.x.shape[1])


def _estimate_time_steps(task: Task, split: str, batch: int) -> float:
    """Estimate the time steps of a split from evenly spaced batches."""
    every = max(1, (task.count(split, batch=batch) or 0) // SAMPLED_BATCHES)
    return sum(_time_steps(one) for one in islice(task.batches(split, batch=batch), 0, None, every)) * every


def measure_speed(
    source: Mapping[str, Any], settings: Mapping[str, Any], sizes: Mapping[str, Any], seconds: float, folder: Path
) -> dict[str, Any]:
    """Train for some seconds (a job).

    Args:
        sizes: the fields of the task's `TaskSize`.
        seconds: how long to train.
        folder: the job's folder, on the disk to which runs are written.

    Returns:
        Seconds of a training step, of a validation and of the test; bytes held in training.
    """
    task, chosen, size = load_task(source), TrainSettings(**settings), TaskSize(**sizes)
    device = choose_device(chosen)
    load_copy(chosen.model)
    with use_one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(chosen.seed)
        stepper = Stepper(build(task, chosen).to(device), chosen, ProcessGroup())
        epochs = (task.batches("train", **chosen.sizes, seed=chosen.seed, epoch=epoch) for epoch in count())
        batches = chain.from_iterable(epochs)
        memory = _measure_memory(stepper, next(batches))
        spent, walked = 0.0, 0.0
        for number, batch in enumerate(batches):
            began = time.perf_counter()
            stepper.step([batch], number, chosen.lr)
            if number:  # the first step is slower
                spent, walked = spent + time.perf_counter() - began, walked + _time_steps(batch)
            if number >= FEWEST_STEPS and spent > seconds:
                break
        forward = _measure_forward(stepper, task, seconds / 4)
        return {
            "step": spent / max(1.0, walked) * size.train,
            "valid": forward * size.valid + _measure_saving(stepper, folder),
            "test": forward * size.test + _measure_decoding(stepper, task),
            "memory": memory,
            "facts": asdict(size),
        }


def _measure_memory(stepper: Stepper, batch: Batch) -> int:
    """Return the bytes of weights, gradients, averages, and activations kept for the backward pass of one batch."""
    if stepper.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        stepper.step([batch], 0, 0.0)
        return torch.cuda.max_memory_allocated()
    kept = kept_bytes(lambda: stepper.step([batch], 0, 0.0), *stepper.model.parameters())
    return ADAM_COPIES * 4 * parameters(stepper.model) + kept


@torch.no_grad()
def _measure_forward(stepper: Stepper, task: Task, seconds: float) -> float:
    """Return the seconds per time step of validation, starting in the middle: batches are sorted by length."""
    middle = (task.count("valid", **stepper.settings.sizes) or 1) // 2
    stepper.model.eval()
    spent, walked = 0.0, 0.0
    for batch in task.batches("valid", **stepper.settings.sizes, skip=middle):
        began = time.perf_counter()
        stepper.model.scores(batch.to(stepper.device))
        spent, walked = spent + time.perf_counter() - began, walked + _time_steps(batch)
        if spent > seconds:
            break
    return spent / max(1.0, walked)


@torch.no_grad()
def _measure_decoding(stepper: Stepper, task: Task) -> float:
    """Return the seconds for the translations of validation and test rows that are decoded; 0 for other tasks."""
    if not kind_of(task).writes:
        return 0.0
    batch = take_middle(task, "test", **stepper.settings.sizes)
    batch = replace(batch, y=None, y_lengths=None).to(stepper.device)
    began = time.perf_counter()
    stepper.model.predict(batch)
    rows = sum(min(MOST_DECODED, task.splits[split].size or 0) for split in ("valid", "test"))
    return (time.perf_counter() - began) * rows / len(batch)


def _measure_saving(stepper: Stepper, folder: Path) -> float:
    """Return the seconds for the two checkpoints after a validation."""
    weights, training = stepper_tensors(stepper, [])
    began = time.perf_counter()
    with scratch.make_folder(folder / "saving") as place:
        checkpoint.write(place / "last", {}, weights=weights, training=training)
    return 2 * (time.perf_counter() - began)


def measure_latency(source: Mapping[str, Any], run: str, folder: Path) -> dict[str, Any]:
    """Time predictions with a run's best weights (a job); one thread on a CPU."""
    stored = Run.load(run)
    with use_one_thread(), torch.random.fork_rng(devices=[]):
        return time_predictions(stored.model("best", str(choose_device(stored.settings))), load_task(source))


@torch.no_grad()
def time_predictions(model: ForTask, task: Task) -> dict[str, float]:
    """Return the seconds for one sequence and for 64, of medium length."""
    many = take_middle(task, "test", batch=LATENCY_BATCH).to(next(model.parameters()).device)
    one = many.shard(len(many) // 2, len(many))
    return {"one": _time_prediction(model, one), "many": _time_prediction(model, many) * LATENCY_BATCH / len(many)}


def _time_prediction(model: ForTask, batch: Batch) -> float:
    """Return the median seconds of a prediction, after one to warm up."""
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < LATENCY_CALLS + 1 or time.perf_counter() - began < LATENCY_SECONDS:
        start = time.perf_counter()
        model.predict(batch)
        if batch.x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if len(times) > 1 and time.perf_counter() - began > 10 * LATENCY_SECONDS:
            break
    return sorted(times[1:])[len(times[1:]) // 2]
