"""Start trainings: `fit` in this process, prepared trainings for the command line."""

from __future__ import annotations

import shlex
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ValidationError

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab import console
from seqloom.lab.data.description import describe_task, format_notes
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.registry import open_data, reopen
from seqloom.lab.data.task import DataSource, Task
from seqloom.lab.kinds.registry import KINDS, kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.calibration import resolve_objective
from seqloom.lab.training.folders import choose_folder, find_latest, find_run, list_names
from seqloom.lab.training.layout import RUNS
from seqloom.lab.training.model import build
from seqloom.lab.training.run import WHICH, Run, TakenError
from seqloom.lab.training.train import train

_RANDOM_LOCK = threading.RLock()
S = TypeVar("S", bound=BaseModel)


def fit(
    data: DataSource | Task,
    model: str = "gru",
    *,
    name: str | None = None,
    runs: Path | str = RUNS,
    **settings: object,
) -> Run:
    """Train a model on data and return the finished run.

    Args:
        data: A file, a folder, a polars or pandas frame, a dict of splits, the name of a task, or a `Task`.
        model: A layer by name, or path/to/file.py:MyCell, as in `seqloom train --model`.
        name: The name of the run. Default: a new one made from data and model.
        runs: The folder that holds the run's folder.
        **settings: Any setting of `seqloom train`: how the data is read, and how the model is built and trained.

    Returns:
        The run on disk, with the best weights.

    Raises:
        UserError: If a setting is unknown or invalid, the data cannot be read, or the name is taken.
    """
    training, reading = validate_settings(TrainSettings, {"model": model, **settings})
    task, source = open_data(data, reading)
    training, note = resolve_objective(task, training)
    if note:
        task.notes.say(note)
    check_model(task, training)
    return train_new(task, training, choose_folder(task.name, model, name, runs), source)


def train_new(task: Task, settings: TrainSettings, folder: Path, source: Mapping[str, Any] | None) -> Run:
    """Train a new run. If it fails with a ValueError before the first checkpoint, its folder is removed."""
    existed = folder.exists()
    try:
        with isolate_random():
            return train(task, settings, folder, source=source)
    except TakenError:
        raise  # the folder belongs to another process
    except ValueError:
        if not existed and not any((folder / which).exists() for which in WHICH):
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def isolate_random() -> Iterator[None]:
    """Restore torch's random generators afterwards; let only one thread train at a time."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with _RANDOM_LOCK, torch.random.fork_rng(devices=cuda):
        yield


def check_model(task: Task, settings: TrainSettings) -> None:
    """Raise an error if the model cannot be built, before anything is written to disk."""
    kind_of(task).check_settings(task, settings)  # not checked when a stored run is loaded
    with torch.random.fork_rng(devices=[]):
        build(task, settings)


def validate_settings(kind: type[S], settings: Mapping[str, Any]) -> tuple[S, dict[str, Any]]:
    """Split settings into validated ones of this kind and those of reading the data.

    Raises:
        UserError: If a setting is unknown or invalid.
    """
    known = [*kind.model_fields, *Reading.model_fields]
    for name in settings:
        if name not in known:
            hint = suggest(name, known) or f"there are {', '.join(known)}"
            raise UserError(f"no setting {name!r}; {hint}")
    reading = {name: value for name, value in settings.items() if name in Reading.model_fields}
    try:
        return kind(**{name: value for name, value in settings.items() if name not in reading}), reading
    except ValidationError as error:
        first = error.errors()[0]
        message = console.describe_invalid(".".join(map(str, first["loc"])), first["msg"])
        raise UserError(f"{message}, got {first['input']!r}" if first["loc"] else message) from None


@dataclass(frozen=True)
class PreparedTraining:
    """A training that is ready to run, and the facts to print before it starts."""

    task: Task
    settings: TrainSettings | None
    folder: Path
    source: Any
    resume: bool
    facts: list[str]
    trust: bool = False

    def run(self) -> Run:
        """Train and return the run."""
        if self.resume:
            return train(self.task, self.settings, self.folder, resume=True, trust=self.trust)
        return train_new(self.task, self.settings or TrainSettings(), self.folder, self.source)

    @property
    def resume_command(self) -> str:
        return shlex.join(["seqloom", "train", "--resume", "--out", str(self.folder)])


def prepare_new(
    data: str | None, out: Path | None, runs: Path, settings: TrainSettings, options: Mapping[str, Any]
) -> PreparedTraining:
    """Prepare a new training in the folder `out`, or in a new one of `runs`; `options` say how the data is read."""
    if data is None:
        raise UserError("give the data to train on: a file, a folder or the name of a task (or a --config with it)")
    task, source = open_data(data, options)
    settings, note = resolve_objective(task, settings)
    if note:
        task.notes.say(note)
    check_model(task, settings)
    name, runs = (None, runs) if out is None else (out.name, out.parent)
    folder = choose_folder(task.name, settings.model, name, runs)
    lines = [*describe_task(task, console.text_width()), "", f"training {settings.model} in {folder}"]
    return PreparedTraining(task, settings, folder, source, False, lines)


def prepare_resume(
    data: str | None,
    out: Path | None,
    runs: Path,
    settings: TrainSettings,
    options: Mapping[str, Any],
    trust: bool = False,
) -> PreparedTraining:
    """Prepare to continue an interrupted run; flags may change only settings that do not change its results.

    The run is that in `out`, by default the latest with this data and model in `runs`.
    """
    opened = None if data is None else open_data(data, options)[0]
    if out is None and opened is not None and (latest := find_latest(opened.name, settings.model, runs)):
        out = runs / latest
    if out is None:
        names = ", ".join(list_names(runs)) or "none"
        raise UserError(f"give the run to resume as --out {runs}/NAME; {runs}/ holds {names}")
    run = find_run(out, runs, trust)
    flags = {field: getattr(settings, field) for field in settings.model_fields_set}
    task = reopen(run.record["source"]) if opened is None else opened
    changed = TrainSettings(**(run.settings.model_dump() | flags)) if flags else None
    notes = [console.wrap(note, console.text_width()) for note in format_notes(task)]
    return PreparedTraining(task, changed, run.folder, None, True, [*notes, f"resuming {run.folder}"], trust)


def use_command(run: Run) -> str:
    """Return the command line that applies the run to new data."""
    kind = KINDS[run.record["task"]["kind"]]
    return shlex.join(["seqloom", kind.command, str(run.folder), *([] if kind.continues_text else ["FILE"])])
