"""The one loop: batches, steps, validations and checkpoints of a run."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields

import torch

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.stats.metrics import is_better, primary_metric
from seqloom.lab.training import checkpoint
from seqloom.lab.training.checkpoint import load_weights, weights_of
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.journal import Journal
from seqloom.lab.training.model import build
from seqloom.lab.training.progress import ProgressReport
from seqloom.lab.training.run import METRICS, Run
from seqloom.lab.training.schedule import Schedule
from seqloom.lab.training.scoring import score
from seqloom.lab.training.step import Stepper
from seqloom.lab.training.step_state import restore_stepper, stepper_facts, stepper_tensors

STEPS = 2000  # where the settings say nothing and the data has no end; and where it has one,
ENOUGH = 2500  # about so many, in
FEWEST, USUAL, MOST = 3, 10, 200  # epochs: the fewest where much text has one answer a row, and is soon known by heart
MUCH, PIECE = 250, 8192  # batches in a pass, and time steps in each
AGREE = 10  # steps after which several processes ask whether a checkpoint is due


@dataclass
class LoopState:
    """Where a training stands: with the tensors, all that it goes on from."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of this epoch, behind us
    seconds: float = 0.0
    validated: int = 0  # the step of the last validation
    waited: int = 0  # validations without progress
    best: float | None = None
    best_loss: float | None = None
    loss: float = 0.0  # since the last validation, over so many targets
    targets: int = 0
    finished: str | None = None


class Training:
    """Of one task, in one run; `train` ends when the run is finished."""

    def __init__(self, task: Task, run: Run, device: torch.device, processes: ProcessGroup) -> None:
        self.task, self.run, self.settings, self.processes = task, run, run.settings, processes
        s = self.settings
        torch.manual_seed(s.seed)
        self.stepper = Stepper(build(task, run.settings_to_build()).to(device), s, processes)
        self.model = self.stepper.model
        each = task.count("train", **s.sizes, seed=s.seed)
        if each == 0:
            raise UserError(f"task {task.name!r} has nothing to train on")
        if each is None and s.epochs:
            raise UserError(f"the training data of task {task.name!r} has no end; give steps in place of epochs")
        a_pass = None if each is None else -(-each // s.accumulate)
        self.epochs = None if a_pass is None or s.steps else s.epochs or _epochs(task, a_pass)
        self.steps = s.steps or (STEPS if a_pass is None else a_pass * (self.epochs or 1))
        self.every = s.validate_every or (max(1, self.steps // 10) if a_pass is None else None)
        self.schedule = Schedule(s, self.steps)
        self.at = LoopState()

    def train(self) -> None:
        kept = self._restore()
        self.journal = None
        if self.processes.is_first:
            self.journal = Journal(self.run.folder / METRICS, kept, self.settings.tensorboard)
        self.saved = time.perf_counter()
        self.began = self.saved - self.at.seconds
        try:
            with ProgressReport(self.processes.is_first, self.steps - self.at.step) as self.progress:
                while not self.at.finished:
                    self._epoch()
            self._test()
        finally:
            if self.journal is not None:
                self.journal.close()

    def _epoch(self) -> None:
        at, s = self.at, self.settings
        self.model.train()
        batches = self.task.batches("train", **s.sizes, seed=s.seed, epoch=at.epoch, skip=at.batch)
        for group in _groups(batches, s.accumulate):
            loss, targets = self.stepper.step(group, at.step, s.lr * self.schedule.share(at.step))
            at.step, at.batch = at.step + 1, at.batch + len(group)
            at.loss, at.targets = at.loss + loss, at.targets + targets
            self.progress.report_step(
                f"epoch {at.epoch + 1}", at.loss / max(1, at.targets), sum(b.steps for b in group)
            )
            if self.epochs is None and at.step >= self.steps:
                at.finished = "steps"
            if at.finished or (self.every and at.step % self.every == 0):
                self._validate()
            elif self._due():
                self._save("last")
            if at.finished:
                return
        at.epoch, at.batch = at.epoch + 1, 0
        if self.epochs is not None and at.epoch >= self.epochs:
            at.finished = "epochs"
        if at.validated < at.step and (self.every is None or at.finished):
            self._validate()
        elif at.finished:
            self._save("last")  # it was validated already, but not yet at its end

    def _validate(self) -> None:
        """Metrics of the validation split; was it the best so far? Then a checkpoint."""
        at, s = self.at, self.settings
        values: dict[str, float] = {}
        if "valid" in self.task.splits:
            with self._averaged():
                values = score(
                    self.model, self.task, "valid", **s.sizes, full=False, within=self.stepper.autocast()
                ).values
        values = self.processes.broadcast(values)
        progress = self._progress(values)
        at.waited, at.validated = 0 if progress else at.waited + 1, at.step
        self.schedule.record_validation(progress)
        if s.patience and at.waited >= s.patience:
            at.finished = at.finished or "patience"
        loss = float(self.processes.sum(torch.tensor(at.loss, dtype=torch.float64, device=self.stepper.device)))
        facts = {"train_loss": loss / max(1, at.targets), **values}
        at.loss, at.targets = 0.0, 0
        if self.journal is not None:
            lr = s.lr * self.schedule.share(at.step)
            seconds = round(time.perf_counter() - self.began, 3)
            self.journal.write(step=at.step, epoch=at.epoch, split="valid", lr=lr, seconds=seconds, **facts)
        self.progress.report_validation(
            f"epoch {at.epoch}, step {at.step}", facts, primary_metric(self.task.kind, values)
        )
        # best before last: killed in between, the last one leads here again
        for which in ("best", "last") if progress else ("last",):
            self._save(which)
        self.model.train()

    def _progress(self, values: dict[str, float]) -> bool:
        """Better than the best so far; of equals, the one with the lower loss."""
        at, name = self.at, primary_metric(self.task.kind, values)
        value, loss = (values.get(key, math.nan) for key in (name, "loss"))
        best, best_loss = (math.nan if v is None else v for v in (at.best, at.best_loss))
        if values and not is_better(name, value, best) and not (value == best and is_better("loss", loss, best_loss)):
            return at.best is None
        at.best, at.best_loss = (None if math.isnan(v) else v for v in (value, loss))
        return True

    def _due(self) -> bool:
        s, at = self.settings, self.at
        if s.checkpoint_steps is not None:
            return at.step % s.checkpoint_steps == 0
        if self.processes.count > 1 and at.step % AGREE:
            return False
        return bool(self.processes.broadcast(time.perf_counter() - self.saved > 60 * s.checkpoint_every))

    def _save(self, which: str) -> None:
        at, stepper = self.at, self.stepper
        at.seconds = round(time.perf_counter() - self.began, 3)
        carried = self.processes.gather(stepper.carried)
        if self.journal is None:
            return
        facts = asdict(at) | stepper_facts(stepper) | {"format": 1, "schedule": self.schedule.state()}
        facts["metrics"] = self.journal.size()
        weights, training = stepper_tensors(stepper, carried)
        try:
            checkpoint.write(self.run.folder / which, facts, weights=weights, training=training)
        except OSError as error:
            raise OSError(
                error.errno,
                f"step {at.step} could not be saved ({error.strerror}); the run is whole up to the checkpoint "
                "before, so make room and resume it",
                str(self.run.folder),
            ) from error
        self.saved = time.perf_counter()

    def _restore(self) -> int:
        """Go on where the last checkpoint was taken; the bytes of the journal that it knows."""
        found = self.run.checkpoint("last", missing_ok=True)
        if found is None:
            return 0
        facts = found.facts
        self.at = LoopState(**{f.name: facts[f.name] for f in fields(LoopState)})
        self.schedule.restore(facts["schedule"])
        restore_stepper(self.stepper, facts, found.tensors("weights"), found.tensors("training"))
        return int(facts["metrics"])

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The model with the average of its weights, where there is one."""
        average = self.stepper.average
        if average is None:
            yield
            return
        own = {name: w.clone() for name, w in weights_of(self.model).items()}
        load_weights(self.model, average.weights)
        yield
        load_weights(self.model, own)

    def _test(self) -> None:
        """The best weights on the test split, once, with intervals."""
        self.processes.broadcast(None)  # they are on the disk
        found = self.run.checkpoint("best")
        assert found is not None
        load_weights(self.model, found.tensors("weights"))
        if "test" not in self.task.splits:
            return
        made = score(
            self.model, self.task, "test", **self.settings.sizes, intervals=True, within=self.stepper.autocast()
        )
        if self.journal is not None:
            intervals = {f"{name}_interval": list(ends) for name, ends in made.intervals.items()}
            self.journal.write(step=found.facts["step"], split="test", rows=made.rows, **made.values, **intervals)


def _epochs(task: Task, a_pass: int) -> int:
    """How often the data are passed over, where nobody says."""
    few = task.kind in ("classify", "regress") and a_pass > MUCH
    # looked at closely only where it is not plain
    few = few and (a_pass > 20 * MUCH or (task.count("train", tokens=PIECE) or 0) > MUCH)
    return max(FEWEST if few else USUAL, min(MOST, ENOUGH // a_pass))


def _groups(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    steady = iter(batches)
    while group := list(itertools.islice(steady, size)):
        yield group
