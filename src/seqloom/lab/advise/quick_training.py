"""Short trainings on the sample: the time and memory of a step, and the score after a few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from seqloom.lab.advise.sample import Sample
from seqloom.lab.data.task import Batch
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.model import build
from seqloom.lab.training.step import Stepper
from seqloom.tools.measure import kept_bytes

FEWEST_TIMED, MOST_TIMED, TIMED_SECONDS = 3, 20, 0.2  # timed steps, and seconds after which they are enough
WARM_UP_STEPS = 20
ADAM_COPIES = 4  # a weight, its gradient and two moving averages
SCORED_STEPS = 60_000  # most time steps of held-out sequences that are scored
SIMILAR_LENGTHS = 64  # examples of similar length from which a batch is drawn


@dataclass(frozen=True)
class QuickResult:
    """The outcome of a short training; `score` is on held-out examples, in the metric of the task."""

    parameters: int = 0
    step_seconds: float = math.nan  # time of a step on a batch of typical length
    bytes: int = 0  # weights, gradients, optimiser averages, and activations kept for the backward pass
    steps: int = 0
    score: float = math.nan
    failed: str = ""  # why, if it failed


NOT_TRIED = QuickResult()


def try_model(sample: Sample, settings: TrainSettings, device: torch.device, seconds: float) -> QuickResult:
    """Train a new model for some seconds, including timing and scoring; an error is returned, not raised."""
    end = time.perf_counter() + seconds
    try:
        with isolate_training(settings.seed, device):
            training = QuickTraining(sample, settings, device)
            saved = kept_bytes(lambda: training.model(training.typical), *training.model.parameters())
            step_seconds = training.time_steps(end)
            training.train_until(end - min(0.2 * seconds, 1.0))
            score = training.score(end)
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        return QuickResult(failed=str(error).splitlines()[0][:200])
    count = sum(p.numel() for p in training.model.parameters())
    return QuickResult(count, step_seconds, ADAM_COPIES * 4 * count + saved, training.steps, score)


class QuickTraining:
    """Training steps on the fitting part of a sample."""

    def __init__(self, sample: Sample, settings: TrainSettings, device: torch.device) -> None:
        self.sample, self.device, self.steps, self.size = sample, device, 0, settings.batch or 32
        self.model = build(sample.task, settings).to(device)
        self.stepper = Stepper(self.model, settings, ProcessGroup())
        self.lr = settings.lr
        self.random = np.random.default_rng(settings.seed)
        self.order = np.argsort(sample.lengths[: sample.fit], kind="stable")
        self.typical = sample.batch(typical_rows(sample, self.size)).to(device)

    def step(self, batch: Batch) -> None:
        """Train on one batch; the learning rate rises over the first steps."""
        self.stepper.step([batch], self.steps, self.lr * min(1.0, (self.steps + 1) / WARM_UP_STEPS))
        self.steps += 1
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time_steps(self, end: float) -> float:
        """Return the seconds of the fastest step on a batch of typical length."""
        times: list[float] = []
        while len(times) < FEWEST_TIMED or (len(times) < MOST_TIMED and sum(times) < TIMED_SECONDS):
            start = time.perf_counter()
            self.step(self.typical)
            times.append(time.perf_counter() - start)
            if time.perf_counter() > end:
                break
        return min(times)

    def train_until(self, end: float, least: int = 0, most: int = 1_000_000) -> None:
        """Train on random batches of similar lengths until a deadline, for `least` to `most` steps in all."""
        self.model.train()
        while self.steps < least or (time.perf_counter() < end and self.steps < most):
            first = int(self.random.integers(max(1, len(self.order) - SIMILAR_LENGTHS + 1)))
            rows = self.random.permutation(self.order[first : first + SIMILAR_LENGTHS])[: self.size]
            self.step(self.sample.batch(rows.tolist()).to(self.device))

    @torch.no_grad()
    def score(self, end: float) -> float:
        """Return the accuracy, or the mean loss, on as many held-out examples as there is time for."""
        kind, sample = kind_of(self.sample.task), self.sample
        held = np.arange(sample.fit, len(sample))
        held = held[np.cumsum(sample.lengths[held]) <= max(SCORED_STEPS, sample.lengths[held[0]])]
        total, count = 0.0, 0
        self.model.eval()
        for part in np.array_split(held, max(1, len(held) // 32)):
            batch = sample.batch(part.tolist()).to(self.device)
            assert batch.y is not None
            if kind.has_classes:
                predicted, known = self.model.predict(batch).values, batch.y >= 0
                total, count = total + int((predicted == batch.y)[known].sum()), count + int(known.sum())
            else:
                loss, n = float(self.model(batch)[0]), int(self.model.count_targets(batch).sum())
                total, count = total + loss, count + n
            if time.perf_counter() > end:
                break
        return total / max(1, count)


def typical_rows(sample: Sample, size: int) -> list[int]:
    """Return the rows whose lengths are closest to the mean, so that a step on them takes the average time."""
    lengths = sample.lengths[: sample.fit]
    rows: list[int] = np.argsort(np.abs(lengths - lengths.mean()), kind="stable")[:size].tolist()
    return rows


@contextmanager
def isolate_training(seed: int, device: torch.device) -> Iterator[None]:
    """Train on one thread with this seed, without changing the caller's random state."""
    with use_one_thread(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
