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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.training.recipe import SmallTraining, TrainedModel
from seqloom.lab.training.stacked import BATCH_SEED_OFFSET, StackedStep
from seqloom.lab.training.update import Update

MAX_GRAPHS = 24  # replayed at once; more do not fit the hardware queues
MAX_STEPS_AHEAD = 8  # steps by which the host may be ahead of a stream
WARM_UP_STEPS = 3  # steps before one is recorded
NO_MEMORY = torch.OutOfMemoryError.__name__

logger = logging.getLogger(__name__)


def train_many(trainings: Sequence[SmallTraining], device: str | torch.device) -> list[TrainedModel]:
    """Run all trainings and return their results in the same order.

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
    recordings: dict[tuple[int, ...], _Recording] = {}
    for (name, steps), places in stacks.items():
        try:
            stacked = StackedStep([trainings[i] for i in places], device)
            recordings[tuple(places)] = _Recording(stacked, steps, device)
        except Exception as error:  # they are trained side by side instead
            torch.cuda.synchronize(device)
            logger.warning("%s: not trained as one model: %s", name, error)
    seconds = _replay(list(recordings.values()), device)
    for some, recording in recordings.items():
        results |= dict(zip(some, recording.step.results(seconds), strict=True))
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


class SmallStep:
    """One step of one training; everything that changes from step to step is a tensor on the device."""

    def __init__(self, training: SmallTraining, device: torch.device) -> None:
        self.training, recipe = training, training.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)
            self.model = training.model().to(device, training.dtype).train()
        self.generators = [torch.Generator(device).manual_seed(training.seed + BATCH_SEED_OFFSET)]
        on_gpu = device.type == "cuda"
        optimiser = torch.optim.AdamW(
            self.model.parameters(),
            lr=torch.zeros((), device=device) if on_gpu else 0.0,
            weight_decay=recipe.weight_decay,
            capturable=on_gpu,
            fused=on_gpu,
        )
        self.update = Update(self.model.parameters(), optimiser, recipe.clip)
        self.rates = torch.tensor([recipe.rate(i) for i in range(recipe.steps)], device=device)
        self.losses = torch.full((recipe.steps,), math.nan, device=device)  # NaN: the step was skipped
        self.nan = self.losses[0].clone()
        self.done = torch.zeros(1, dtype=torch.long, device=device)

    def prepare(self, done: int) -> None:
        """Prepare a step; `done` steps are finished."""
        if self.training.prepare is not None:
            with torch.no_grad():
                self.training.prepare(self.model, self.generators[0], done)

    def __call__(self) -> None:
        self.update.set_rate(self.rates.index_select(0, self.done).squeeze())
        loss = self.training.loss(self.model, self.training.batch(self.generators[0], self.done.device))
        finite = self.update.take_step(loss)
        value = torch.where(finite, loss.detach().float(), self.nan)
        self.losses.index_copy_(0, self.done, value.view(1))
        self.done += 1

    def results(self, seconds: float) -> list[TrainedModel]:
        """Return the result of the training."""
        return [TrainedModel.of(self.training, self.model, self.losses.tolist(), seconds)]


def _build_failure(training: SmallTraining, error: Exception) -> TrainedModel:
    return TrainedModel(training.name, None, [], 0.0, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _train_one(training: SmallTraining, device: torch.device) -> TrainedModel:
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        try:
            step = SmallStep(training, device)
            torch.manual_seed(training.seed)  # for dropout
            for done in range(training.recipe.steps):
                step.prepare(done)
                step()
        except Exception as error:
            return _build_failure(training, error)
    return step.results(time.perf_counter() - began)[0]


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
                recordings[i] = _Recording(SmallStep(training, device), training.recipe.steps, device)
            except Exception as error:
                torch.cuda.synchronize(device)
                results[i] = _build_failure(training, error)
    seconds = _replay(list(recordings.values()), device)
    for i, recording in recordings.items():
        (results[i],) = recording.step.results(seconds)
    return [results[i] for i in range(len(trainings))]


def _replay(recordings: Sequence[_Recording], device: torch.device) -> float:
    """Run the steps that are left of all recordings, in turns; return the seconds."""
    began = time.perf_counter()
    for _ in range(max((recording.steps for recording in recordings), default=0)):
        for recording in recordings:
            if recording.done < recording.steps:
                recording.replay()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began


class _Recording:
    """A step as a CUDA graph; the warm-up steps before the recording are part of the training."""

    def __init__(self, step: SmallStep | StackedStep, steps: int, device: torch.device) -> None:
        self.step, self.done, self.steps = step, 0, steps
        self.recorded = RecordedSteps(device, MAX_STEPS_AHEAD)
        for _ in range(min(WARM_UP_STEPS, steps)):
            self.recorded.run(self._prepare, step)
        self.recorded.record([step], step.generators)

    def replay(self) -> None:
        self.recorded.run(self._prepare, self.recorded.graphs[0].replay)

    def _prepare(self) -> None:
        self.step.prepare(self.done)
        self.done += 1


class RecordedSteps:
    """A stream, the steps that were recorded for it, and how far the host is ahead of it.

    Args:
        ahead: Most steps that are started and have not ended.
    """

    def __init__(self, device: torch.device, ahead: int) -> None:
        self.device, self.ahead = device, ahead
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._events: list[torch.cuda.Event] = []

    def is_ready(self) -> bool:
        """Return whether the next step can be started without waiting for the GPU."""
        return len(self._events) < self.ahead or self._events[0].query()

    def run(self, *work: Callable[[], object]) -> None:
        """Start the work of one step on the stream, when the one `ahead` steps before has ended."""
        if len(self._events) >= self.ahead:
            self._events.pop(0).synchronize()
        with torch.cuda.stream(self.stream):
            for call in work:
                call()
            event = torch.cuda.Event()
            event.record()
        self._events.append(event)

    def record(self, steps: Sequence[Callable[[], object]], generators: Sequence[torch.Generator]) -> None:
        """Record a graph of each step, which share their memory; `graphs` replay them.

        Args:
            steps: Functions that make one step; each must have been called before.
            generators: The random generators that the steps draw from.
        """
        torch.cuda.synchronize(self.device)
        pool, graphs = torch.cuda.graph_pool_handle(), []
        for step in steps:
            graph = torch.cuda.CUDAGraph()
            for generator in generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
                step()
            graphs.append(graph)
        self.graphs = graphs
