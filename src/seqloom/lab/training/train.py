"""One training of any model on any task, as a run on disk that can be resumed bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Task
from seqloom.lab.training.cpu import are_denormals_flushed
from seqloom.lab.training.distributed import ProcessGroup, join_processes, local_device
from seqloom.lab.training.loop import Training
from seqloom.lab.training.run import Run, fingerprint
from seqloom.lab.training.settings import TrainSettings

# May change on resume. More or fewer threads add in another order, so that is said.
FREE = {"device", "threads", "checkpoint_every", "checkpoint_steps", "tensorboard"}  # may change on resume


def train(
    task: Task,
    settings: TrainSettings | None,
    folder: Path | str,
    *,
    resume: bool = False,
    source: Any = None,
    trust: bool = False,
) -> Run:
    """Train, and leave a run in `folder`: its best weights, its last ones, its metrics.

    With `resume`, a run that is there goes on where its last checkpoint was taken, under its own
    settings, and ends with the very weights it would have had. Under torchrun, several processes
    train on parts of each batch. `source` is kept in run.json, for who opens the data again. With `trust`, a run that
    came from elsewhere may go on with code of its own.
    """
    with ExitStack() as stack:
        device = choose_device(settings or _settings_of(Path(folder)))
        processes = stack.enter_context(join_processes(device))
        run = _open(task, settings, Path(folder), resume, source, processes, trust)
        if processes.is_first:
            stack.enter_context(run.lock())
        processes.broadcast(None)  # no checkpoint is renamed any more
        stack.enter_context(_quiet_machine(run.settings, device))
        if not (run.finished and _tested(run, task)):
            Training(task, run, device, processes).train()
        processes.broadcast(None)  # the last file is there before anyone reads it
        return run


def _open(
    task: Task,
    settings: TrainSettings | None,
    folder: Path,
    resume: bool,
    source: Any,
    processes: ProcessGroup,
    trust: bool,
) -> Run:
    there = processes.broadcast((folder / "run.json").exists())
    if not (resume and there):
        if processes.is_first:
            Run.create(folder, settings or TrainSettings(), task, source)
        processes.broadcast(None)
        return Run.load(folder)
    run = Run.load(folder, trust=trust)
    if fingerprint(task) != run.record["data"]:
        raise UserError(f"{folder} was trained on other data than task {task.name!r} has now; start a new run")
    changed = {} if settings is None else settings.model_dump(exclude=FREE)
    for name, value in changed.items():
        was = getattr(run.settings, name)
        if value != was:
            raise UserError(f"{folder} was trained with {name}={was}, not {value}; resume it as it is")
    if settings is not None:
        if settings.threads != run.settings.threads and processes.is_first:
            warnings.warn(
                f"{folder} was trained with threads={run.settings.threads}, and goes on with {settings.threads}: "
                "sums are taken in another order, so that it will not end with the very weights it would have had",
                stacklevel=3,
            )
        run.settings = settings
    return run


def _settings_of(folder: Path) -> TrainSettings:
    return Run.load(folder).settings if (folder / "run.json").exists() else TrainSettings()


def choose_device(settings: TrainSettings) -> torch.device:
    """The one asked for; a GPU where there is one."""
    asked = settings.device
    if asked == "auto":
        return local_device(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        torch.zeros((), device=asked)
        return local_device(torch.device(asked))
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {asked!r} cannot be used: {str(error).splitlines()[0]}") from None


@contextmanager
def _quiet_machine(settings: TrainSettings, device: torch.device) -> Iterator[None]:
    """The threads asked for, no denormals, which slow a CPU down, and the caller's random numbers untouched."""
    threads, flushed = torch.get_num_threads(), are_denormals_flushed()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.set_flush_denormal(True)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def _tested(run: Run, task: Task) -> bool:
    return "test" not in task.splits or any(line.get("split") == "test" for line in run.metrics())
