"""A model on the sample for a moment: what a step takes, what it keeps in memory, and how far a short training gets."""

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
from seqloom.lab.training.cpu import use_one_thread
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.model import build
from seqloom.lab.training.settings import TrainSettings
from seqloom.lab.training.step import Stepper
from seqloom.tools.measure import kept_bytes

LEAST, MOST, TIMED = 3, 20, 0.2  # steps that are timed, and seconds that are enough
WARM_UP = 20  # steps
ADAM = 4  # a weight, its gradient and two averages
SCORED = 60_000  # steps of held-out sequences that a score is taken on, at most
NEAR = 64  # examples of like length that a batch is drawn from


@dataclass(frozen=True)
class Trial:
    """`score` is on held-out examples after `steps` steps, in the metric of the task's kind."""

    parameters: int = 0
    step_seconds: float = math.nan  # of a batch of usual length
    bytes: int = 0  # weights, gradients, the optimiser's averages, and what a step keeps for its backward
    steps: int = 0
    score: float = math.nan
    failed: str = ""


NOT_TRIED = Trial()


def trial(sample: Sample, settings: TrainSettings, device: torch.device, seconds: float) -> Trial:
    """A fresh model for so many seconds, the timing and the score included; what fails is told, not raised."""
    end = time.perf_counter() + seconds
    try:
        with quiet(settings.seed, device):
            training = Training(sample, settings, device)
            kept = kept_bytes(lambda: training.model(training.usual), *training.model.parameters())
            step_seconds = training.timed(end)
            training.until(end - min(0.2 * seconds, 1.0))
            score = training.score(end)
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        return Trial(failed=str(error).splitlines()[0][:200])
    count = sum(p.numel() for p in training.model.parameters())
    return Trial(count, step_seconds, ADAM * 4 * count + kept, training.steps, score)


class Training:
    """Steps on the part of the sample that is to learn from."""

    def __init__(self, sample: Sample, settings: TrainSettings, device: torch.device) -> None:
        self.sample, self.device, self.steps, self.size = sample, device, 0, settings.batch or 32
        self.model = build(sample.task, settings).to(device)
        self.stepper = Stepper(self.model, settings, ProcessGroup())
        self.lr = settings.lr
        self.random = np.random.default_rng(settings.seed)
        self.order = np.argsort(sample.lengths[: sample.fit], kind="stable")
        self.usual = sample.batch(usual(sample, self.size)).to(device)

    def step(self, batch: Batch) -> None:
        """The learning rate rises over the first ones."""
        self.stepper.step([batch], self.steps, self.lr * min(1.0, (self.steps + 1) / WARM_UP))
        self.steps += 1

    def timed(self, end: float) -> float:
        """The fastest step on one batch of usual length."""
        taken: list[float] = []
        while len(taken) < LEAST or (len(taken) < MOST and sum(taken) < TIMED):
            begun = time.perf_counter()
            self.step(self.usual)
            self._wait()
            taken.append(time.perf_counter() - begun)
            if time.perf_counter() > end:
                break
        return min(taken)

    def until(self, end: float, least: int = 0, most: int = 1_000_000) -> None:
        """Batches of like lengths, drawn at random; at least and at most so many steps in all."""
        self.model.train()
        while self.steps < least or (time.perf_counter() < end and self.steps < most):
            first = int(self.random.integers(max(1, len(self.order) - NEAR + 1)))
            rows = self.random.permutation(self.order[first : first + NEAR])[: self.size]
            self.step(self.sample.batch(rows.tolist()).to(self.device))
            self._wait()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.no_grad()
    def score(self, end: float) -> float:
        """Accuracy, or the mean loss, on held-out examples, as many as there is time for."""
        kind, sample = self.sample.task.kind, self.sample
        held = np.arange(sample.fit, len(sample))
        held = held[np.cumsum(sample.lengths[held]) <= max(SCORED, sample.lengths[held[0]])]
        total, count = 0.0, 0
        self.model.eval()
        for part in np.array_split(held, max(1, len(held) // 32)):
            batch = sample.batch(part.tolist()).to(self.device)
            assert batch.y is not None
            if kind in ("classify", "tag"):
                said, known = self.model.predict(batch).values, batch.y >= 0
                total, count = total + int((said == batch.y)[known].sum()), count + int(known.sum())
            else:
                loss, n = float(self.model(batch)[0]), int(self.model.count_targets(batch).sum())
                total, count = total + loss, count + n
            if time.perf_counter() > end:
                break
        return total / max(1, count)


def usual(sample: Sample, size: int) -> list[int]:
    """Rows whose lengths are nearest to the mean: a step on them takes what a step takes on average."""
    lengths = sample.lengths[: sample.fit]
    found: list[int] = np.argsort(np.abs(lengths - lengths.mean()), kind="stable")[:size].tolist()
    return found


@contextmanager
def quiet(seed: int, device: torch.device) -> Iterator[None]:
    """As small models are trained here; the caller's random numbers untouched."""
    with use_one_thread(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
