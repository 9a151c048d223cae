"""Train many small models at once, since a single one uses only a fraction of a GPU.

On a GPU each training records a whole step (drawing the batch, forward, backward, clipping, Adam) as a CUDA graph and
replays it on a separate stream; trainings with the same `stack` are one model (`stacked.py`). On a CPU trainings run
one by one. A training depends only on its seed, not on what runs beside it (in a stack, up to rounding), except that
dropout on a GPU draws from the device's generator in the order of the steps.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.training.clipping import clip_gradients
from seqloom.lab.training.recipe import SmallTraining
from seqloom.lab.training.stacked import BATCH_SEED_OFFSET, StackedStep

LOSS_SPANS = 50  # spans of a training, each with its mean loss
MAX_GRAPHS = 24  # replayed at once; more do not fit the hardware queues
MAX_STEPS_AHEAD = 8  # steps by which the host may be ahead of a stream
NO_MEMORY = torch.OutOfMemoryError.__name__

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedModel:
    """The result of one training."""

    name: str
    model: nn.Module | None
    losses: list[float]  # means over equal spans of steps
    seconds_per_step: float  # time of the group in which it ran
    failed: str = ""
    skipped: int = 0  # steps whose gradient was not finite; they changed nothing


def train_many(trainings: Sequence[SmallTraining], device: str | torch.device) -> list[TrainedModel]:
    """Run all trainings and return their results in the same order.

    Args:
        trainings: The trainings.
        device: Where they run.

    Returns:
        A result for each training; `failed` says why one has no model.
    """
    kind = torch.device(device)
    if kind.type == "cuda":
        stacked = _train_stacks(trainings, kind)
        alone = [i for i in range(len(trainings)) if i not in stacked]
        for first in range(0, len(alone), MAX_GRAPHS):
            part = alone[first : first + MAX_GRAPHS]
            stacked |= dict(zip(part, _train_groups([trainings[i] for i in part], kind), strict=True))
        return [stacked[i] for i in range(len(trainings))]
    with use_one_thread():
        return [_train_one(training, kind) for training in trainings]


def _train_stacks(trainings: Sequence[SmallTraining], device: torch.device) -> dict[int, TrainedModel]:
    """Run the trainings that can be stacked; return their results by place, without those that could not be."""
    stacks: dict[tuple[str, int], list[int]] = {}
    for i, training in enumerate(trainings):
        if training.stack:
            stacks.setdefault((training.stack, training.recipe.steps), []).append(i)
    if not stacks:
        return {}
    results: dict[int, TrainedModel] = {}
    recordings: list[tuple[list[int], _Recording]] = []
    for places in stacks.values():
        group = [trainings[i] for i in places]
        try:
            recordings.append((places, _Recording(group[0], device, StackedStep(group, device))))
        except Exception as error:  # they are trained side by side instead
            torch.cuda.synchronize(device)
            logger.warning("%s: not trained as one model: %s", group[0].stack, error)
    began = time.perf_counter()
    for _ in range(max((recording.steps for _, recording in recordings), default=0)):
        for _, recording in recordings:
            recording.replay()
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    for places, recording in recordings:
        assert isinstance(recording.step, StackedStep)
        for i, model, values in zip(places, recording.step.models, recording.step.losses.T.tolist(), strict=True):
            results[i] = _describe_result(trainings[i], model, values, seconds)
    return results


def _train_groups(trainings: Sequence[SmallTraining], device: torch.device) -> list[TrainedModel]:
    """Run trainings as a group; those that ran out of memory run again in smaller groups."""
    results = _train_group(trainings, device)
    again = [i for i, one in enumerate(results) if one.failed.startswith(NO_MEMORY)]
    if not again or len(trainings) == 1:
        return results
    most = -(-len(again) // 2) if len(again) == len(trainings) else len(again)
    for part in filter(None, (again[:most], again[most:])):
        torch.cuda.empty_cache()
        for i, one in zip(part, _train_groups([trainings[i] for i in part], device), strict=True):
            results[i] = one
    return results


class _Step:
    """One step of one training; everything that changes from step to step is a tensor on the device."""

    def __init__(self, training: SmallTraining, device: torch.device) -> None:
        self.training, recipe = training, training.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)
            self.model = training.model().to(device, training.dtype).train()
        self.noise = torch.Generator(device).manual_seed(training.seed + BATCH_SEED_OFFSET)
        self.on_gpu = device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(),
            lr=torch.zeros((), device=device) if self.on_gpu else 0.0,
            weight_decay=recipe.weight_decay,
            capturable=self.on_gpu,
            fused=self.on_gpu,
        )
        self.rates = torch.tensor([recipe.rate(i) for i in range(recipe.steps)], device=device)
        self.losses = torch.full((recipe.steps,), math.nan, device=device)  # NaN: the step was skipped
        self.nan = self.losses[0].clone()
        self.done = torch.zeros(1, dtype=torch.long, device=device)

    def prepare(self, done: int) -> None:
        """Prepare a step; `done` steps are finished."""
        if self.training.prepare is not None:
            with torch.no_grad():
                self.training.prepare(self.model, self.noise, done)

    def __call__(self) -> None:
        recipe = self.training.recipe
        rate = self.rates.index_select(0, self.done).squeeze()
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate) if self.on_gpu else group.update(lr=float(rate))
        loss = self.training.loss(self.model, self.training.batch(self.noise, self.done.device))
        loss.backward()
        finite = clip_gradients([p.grad for p in self.model.parameters() if p.grad is not None], recipe.clip)
        value = torch.where(finite, loss.detach().float(), self.nan)
        finite = value.abs() < math.inf
        if self.on_gpu:
            setattr(self.optimiser, "found_inf", (~finite).float())  # noqa: B010  (makes a fused step skip itself)
            self.optimiser.step()
        elif finite:
            self.optimiser.step()
        self.optimiser.zero_grad()
        self.losses.index_copy_(0, self.done, value.view(1))
        self.done += 1

    def finish(self, seconds: float) -> TrainedModel:
        """Return the result of the training."""
        return _describe_result(self.training, self.model, self.losses.tolist(), seconds)


def _describe_result(
    training: SmallTraining, model: nn.Module, values: Sequence[float], seconds: float
) -> TrainedModel:
    """Return the result of a training with these losses; NaN where a step was skipped."""
    steps = training.recipe.steps
    spans: list[list[float]] = [[] for _ in range(min(LOSS_SPANS, steps))]
    for i, value in enumerate(values):
        if math.isfinite(value):
            spans[i * len(spans) // steps].append(value)
    losses = [sum(span) / len(span) if span else math.nan for span in spans]
    skipped = steps - sum(map(len, spans))
    failed = "" if spans[-1] else f"the gradient was not finite in {skipped:,} of {steps:,} steps"
    return TrainedModel(training.name, model.eval(), losses, seconds / steps, failed, skipped)


def _build_failure(training: SmallTraining, error: Exception) -> TrainedModel:
    return TrainedModel(training.name, None, [], 0.0, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _train_one(training: SmallTraining, device: torch.device) -> TrainedModel:
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        try:
            step = _Step(training, device)
            torch.manual_seed(training.seed)  # for dropout
            for done in range(training.recipe.steps):
                step.prepare(done)
                step()
        except Exception as error:
            return _build_failure(training, error)
    return step.finish(time.perf_counter() - began)


@contextmanager
def _frozen_objects() -> Iterator[None]:
    """Hide existing objects from the garbage collector, which torch runs before each recording, for 0.1 s or more."""
    mine = not gc.get_freeze_count()
    if mine:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if mine:
            gc.unfreeze()


def _train_group(trainings: Sequence[SmallTraining], device: torch.device) -> list[TrainedModel]:
    results: dict[int, TrainedModel] = {}
    recordings: dict[int, _Recording] = {}
    with _frozen_objects():
        for i, training in enumerate(trainings):
            try:
                recordings[i] = _Recording(training, device)
            except Exception as error:
                torch.cuda.synchronize(device)
                results[i] = _build_failure(training, error)
    began = time.perf_counter()
    for _ in range(max((t.recipe.steps for t in trainings), default=0)):
        for recording in recordings.values():
            recording.replay()
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    for i, recording in recordings.items():
        assert isinstance(recording.step, _Step)
        results[i] = recording.step.finish(seconds)
    return [results[i] for i in range(len(trainings))]


class _Recording:
    """A step as a CUDA graph on its own stream; the warm-up steps before the recording are part of the training."""

    def __init__(self, training: SmallTraining, device: torch.device, stacked: StackedStep | None = None) -> None:
        self.step = _Step(training, device) if stacked is None else stacked
        self.done, self.steps = 0, training.recipe.steps
        self.stream = torch.cuda.Stream(device)
        self.events: list[torch.cuda.Event] = []
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream):
            for _ in range(min(3, self.steps)):
                self.step.prepare(self.done)
                self.step()
                self.done += 1
        torch.cuda.synchronize(device)
        self.graph = torch.cuda.CUDAGraph()
        for noise in self.step.noise if isinstance(self.step, StackedStep) else [self.step.noise]:
            self.graph.register_generator_state(noise)
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self.step()

    def replay(self) -> None:
        if self.done == self.steps:
            return
        if len(self.events) >= MAX_STEPS_AHEAD:
            self.events.pop(0).synchronize()
        with torch.cuda.stream(self.stream):
            self.step.prepare(self.done)
            self.graph.replay()
            event = torch.cuda.Event()
            event.record()
        self.events.append(event)
        self.done += 1
