"""The training loop: batches, steps, validations and checkpoints of a run."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.files import checkpoint, sealed
from seqloom.lab.files.checkpoint import load_weights, weights_of
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.stats.metrics import is_better
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.journal import Journal
from seqloom.lab.training.model import build
from seqloom.lab.training.optimiser import Schedule
from seqloom.lab.training.progress import ProgressReport
from seqloom.lab.training.run import METRICS, Run
from seqloom.lab.training.scoring import score
from seqloom.lab.training.step import Stepper, restore_stepper, stepper_facts, stepper_tensors

ENDLESS_STEPS = 2000  # default number of steps for endless data
TARGET_STEPS = 2500  # default number of steps for finite data, within these limits of epochs:
MIN_EPOCHS, MAX_EPOCHS = 10, 200
MIN_EPOCHS_LARGE = 3  # for one target per row on much data, which overfits early
LARGE_BATCHES, LARGE_TOKENS = 250, 8192  # data is large above this many batches of this many time steps
Count = Annotated[int, Field(ge=0)]
STRICT = ConfigDict(strict=True, extra="ignore")
SYNC_STEPS = 10  # steps between the times at which several processes agree whether a checkpoint is due


@dataclass
class LoopState:
    """The position of a training; with the tensors, everything needed to resume it."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches done in this epoch
    seconds: float = 0.0
    validated: int = 0  # the step of the last validation
    waited: int = 0  # validations without progress
    best: float | None = None
    best_loss: float | None = None
    loss: float = 0.0  # sum since the last validation
    targets: int = 0  # of that sum
    finished: str | None = None


class Training:
    """The training of one task in one run; `train` returns when the run is finished."""

    def __init__(self, task: Task, run: Run, device: torch.device, processes: ProcessGroup) -> None:
        self.task, self.run, self.settings, self.processes = task, run, run.settings, processes
        self.kind = kind_of(task)
        s = self.settings
        torch.manual_seed(s.seed)
        self.stepper = Stepper(build(task, run.settings_to_build()).to(device), s, processes)
        self.model = self.stepper.model
        self.model.prepare(task, s)
        batches = task.count("train", **s.sizes, seed=s.seed)
        if batches == 0:
            raise UserError(f"task {task.name!r} has nothing to train on")
        if batches is None and s.epochs:
            raise UserError(f"the training data of task {task.name!r} has no end; give steps instead of epochs")
        per_epoch = None if batches is None else -(-batches // s.accumulate)
        self.epochs = None if per_epoch is None or s.steps else s.epochs or _choose_epochs(task, per_epoch)
        self.steps = s.steps or (ENDLESS_STEPS if per_epoch is None else per_epoch * (self.epochs or 1))
        self.every = s.validate_every or (max(1, self.steps // 10) if per_epoch is None else None)
        self.validation_steps = self.every or per_epoch or self.steps
        self.schedule = Schedule(s, self.steps)
        self.at = LoopState()

    def train(self) -> None:
        """Train from the last checkpoint to the end, then score the test split."""
        with self._record():
            with ProgressReport(self.processes.is_first, self.steps - self.at.step) as self.progress:
                while not self.at.finished:
                    self._train_epoch()
                self._average_checkpoints()
            self._score_test()

    @contextmanager
    def _record(self) -> Iterator[None]:
        """Restore the last checkpoint, and write the journal while the block runs."""
        size, self.journal = self._restore(), None
        if self.processes.is_first:
            self.journal = Journal(self.run.folder / METRICS, size, self.settings.tensorboard)
        self.saved = time.perf_counter()
        self.began = self.saved - self.at.seconds
        try:
            yield
        finally:
            if self.journal is not None:
                self.journal.close()

    def _train_epoch(self) -> None:
        at, s = self.at, self.settings
        self.model.train()
        batches = self.task.batches("train", **s.sizes, seed=s.seed, epoch=at.epoch, skip=at.batch)
        for group in _group(batches, s.accumulate):
            loss, targets = self.stepper.step(group, at.step, s.lr * self.schedule.share(at.step))
            at.step, at.batch = at.step + 1, at.batch + len(group)
            at.loss, at.targets = at.loss + loss, at.targets + targets
            self.progress.report_step(
                f"epoch {at.epoch + 1}", at.loss / max(1, at.targets), sum(b.steps for b in group)
            )
            if self.epochs is None and at.step >= self.steps:
                at.finished = "steps"
            if at.finished or (self.every and at.step % self.every == 0) or self._is_time_up():
                self._validate()
            elif self._is_checkpoint_due():
                self._save("last")
            if at.finished:
                return
        at.epoch, at.batch = at.epoch + 1, 0
        if self.epochs is not None and at.epoch >= self.epochs:
            at.finished = "epochs"
        if at.validated < at.step and (self.every is None or at.finished):
            self._validate()
        elif at.finished:
            self._save("last")  # the last validation came before the end was known

    def _validate(self) -> None:
        """Score the validation split, record it, and write checkpoints."""
        at, s = self.at, self.settings
        values = self._score_validation(None if self.stepper.average is None else self.stepper.average.weights)
        if s.average_checkpoints > -(-max(0, self.steps - at.step) // self.validation_steps):  # validations to come
            assert self.stepper.checkpoints is not None
            self.stepper.checkpoints.add(self.stepper.weights_to_predict())
        progress = self._update_best(values)
        at.waited, at.validated = 0 if progress else at.waited + 1, at.step
        self.schedule.record_validation(progress)
        if s.patience and at.waited >= s.patience:
            at.finished = at.finished or "patience"
        loss = float(self.processes.sum(torch.tensor(at.loss, dtype=torch.float64, device=self.stepper.device)))
        facts = {"train_loss": loss / max(1, at.targets), **values}
        skipped = {"skipped": self.stepper.skipped} if self.stepper.skipped else {}
        at.loss, at.targets = 0.0, 0
        if self.journal is not None:
            lr = s.lr * self.schedule.share(at.step)
            seconds = round(time.perf_counter() - self.began, 3)
            self.journal.write(step=at.step, epoch=at.epoch, split="valid", lr=lr, seconds=seconds, **skipped, **facts)
        self.progress.report_validation(
            f"epoch {at.epoch}, step {at.step}", facts, self.kind.choose_selecting(values, s.metric)
        )
        # best before last: if killed in between, the run resumes before this validation
        for which in ("best", "last") if progress else ("last",):
            self._save(which)
        self.model.train()

    def _score_validation(self, weights: dict[str, Tensor] | None) -> dict[str, float]:
        """Score the validation split, if there is one, with these weights; None for those of the model."""
        values: dict[str, float] = {}
        if "valid" in self.task.splits:
            with self._use_weights(weights):
                values = score(
                    self.model, self.task, "valid", **self.settings.sizes, full=False, within=self.stepper.autocast()
                ).values
        return self.processes.broadcast(values)

    def _average_checkpoints(self) -> None:
        """Make the mean of the last checkpoints the best one, if it is better on the validation split."""
        mean = self.stepper.checkpoints
        if mean is None or mean.count < 2:
            return
        values = self._score_validation(mean.weights)
        if self.journal is not None:
            facts = {"step": self.at.step, "epoch": self.at.epoch, "averaged_checkpoints": mean.count}
            self.journal.write(**facts, split="valid", **values)
        if self._update_best(values):
            self._save("best", mean.weights)

    def _update_best(self, values: dict[str, float]) -> bool:
        """Return whether these values are the best so far, and store them; the loss decides ties."""
        at, name = self.at, self.kind.choose_selecting(values, self.settings.metric)
        value, loss = (values.get(key, math.nan) for key in (name, "loss"))
        best, best_loss = (math.nan if v is None else v for v in (at.best, at.best_loss))
        if values and not is_better(name, value, best) and not (value == best and is_better("loss", loss, best_loss)):
            return at.best is None
        at.best, at.best_loss = (None if math.isnan(v) else v for v in (value, loss))
        return True

    def _is_time_up(self) -> bool:
        """Return whether to validate now because the training will be paused; asked after every step."""
        return False

    def _is_checkpoint_due(self) -> bool:
        s, at = self.settings, self.at
        if s.checkpoint_steps is not None:
            return at.step % s.checkpoint_steps == 0
        if self.processes.count > 1 and at.step % SYNC_STEPS:
            return False
        return bool(self.processes.broadcast(time.perf_counter() - self.saved > 60 * s.checkpoint_every))

    def _save(self, which: str, predicting: dict[str, Tensor] | None = None) -> None:
        """Write a checkpoint, with the weights `predicting` instead of the current ones if they are given."""
        at, stepper = self.at, self.stepper
        at.seconds = round(time.perf_counter() - self.began, 3)
        carried = self.processes.gather(stepper.carried)
        if self.journal is None:
            return
        facts = asdict(at) | stepper_facts(stepper) | {"format": 1, "schedule": self.schedule.state()}
        facts["metrics"] = self.journal.size()
        weights, training = stepper_tensors(stepper, carried)
        try:
            checkpoint.write(self.run.folder / which, facts, weights=predicting or weights, training=training)
        except OSError as error:
            raise OSError(
                error.errno,
                f"step {at.step} could not be saved ({error.strerror}); the previous checkpoint is intact, "
                "so free some space and resume the run",
                str(self.run.folder),
            ) from error
        self.saved = time.perf_counter()

    def _restore(self) -> int:
        """Restore the last checkpoint; return the size of the journal at that time in bytes."""
        last = self.run.checkpoint("last", missing_ok=True)
        if last is None:
            return 0
        facts = last.facts
        with sealed.interpret(last.folder / checkpoint.FACTS):  # a value is missing, or no training wrote it
            ResumeFacts.model_validate(facts)
        self.at = LoopState(**{f.name: facts[f.name] for f in fields(LoopState)})
        self.schedule.restore(facts["schedule"])
        restore_stepper(self.stepper, facts, last.tensors("weights"), last.tensors("training"))
        return int(facts["metrics"])

    @contextmanager
    def _use_weights(self, weights: dict[str, Tensor] | None) -> Iterator[None]:
        """Use these weights inside the block, or the model's own."""
        if weights is None:
            yield
            return
        own = {name: w.clone() for name, w in weights_of(self.model).items()}
        load_weights(self.model, weights)
        yield
        load_weights(self.model, own)

    def _score_test(self) -> None:
        """Calibrate the best weights on the validation split, and score them on the test split, with intervals."""
        self.processes.broadcast(None)  # wait until they are on disk
        best = self.run.checkpoint("best")
        assert best is not None
        load_weights(self.model, best.tensors("weights"))
        self.model.fit_decision(self.task, self.settings)
        if self.processes.is_first:
            self.model.store_decision(self.run.folder)
        if "test" not in self.task.splits:
            return
        scores = score(
            self.model, self.task, "test", **self.settings.sizes, intervals=True, within=self.stepper.autocast()
        )
        if self.journal is not None:
            intervals = {f"{name}_interval": list(ends) for name, ends in scores.intervals.items()}
            self.journal.write(step=best.facts["step"], split="test", rows=scores.rows, **scores.values, **intervals)


def _choose_epochs(task: Task, per_epoch: int) -> int:
    """Return the default number of epochs for data with this many steps per epoch."""
    large = kind_of(task).is_per_row and per_epoch > LARGE_BATCHES
    # counting tokens is slow, so only if the number of batches does not decide
    large = large and (
        per_epoch > 20 * LARGE_BATCHES or (task.count("train", tokens=LARGE_TOKENS) or 0) > LARGE_BATCHES
    )
    return max(MIN_EPOCHS_LARGE if large else MIN_EPOCHS, min(MAX_EPOCHS, TARGET_STEPS // per_epoch))


def _group(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    remaining = iter(batches)
    while group := list(itertools.islice(remaining, size)):
        yield group


class ScheduleFacts(BaseModel):
    """The state of a schedule."""

    model_config = STRICT

    decays: Count
    waited: Count


class ResumeFacts(BaseModel):
    """What a training resumes from, in state.json of a checkpoint; numbers may be NaN where a training diverged."""

    model_config = STRICT

    step: Count
    epoch: Count
    batch: Count
    seconds: float
    validated: Count
    waited: Count
    best: float | None
    best_loss: float | None
    loss: float
    targets: Count
    finished: str | None
    schedule: ScheduleFacts
    parts: Annotated[int, Field(ge=1)]
    scaler: dict[str, float]
    averaged: Count
    skipped: Count = 0
    skipped_in_a_row: Count = 0
    averaged_checkpoints: Count = 0
    metrics: Count
