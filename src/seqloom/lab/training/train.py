"""Train any model on any task, as a run on disk that can be resumed bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Task
from seqloom.lab.jobs.cpu import use_threads
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.distributed import ProcessGroup, join_processes, local_device
from seqloom.lab.training.loop import Training
from seqloom.lab.training.run import Run, fingerprint

# Settings that may change on resume. Another number of threads changes the order of sums, so it gives a warning.
CHANGEABLE = {"device", "threads", "checkpoint_every", "checkpoint_steps", "tensorboard"}


def train(
    task: Task,
    settings: TrainSettings | None,
    folder: Path | str,
    *,
    resume: bool = False,
    source: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Run:
    """Train a model and store the run in `folder`: best and last weights, and metrics.

    Under torchrun, several processes train on parts of each batch.

    Args:
        task: The task to train on.
        settings: The settings. None: the defaults, or those of the run that is resumed.
        folder: The folder of the run.
        resume: Whether to continue the run in `folder` from its last checkpoint, if there is one. It ends with exactly
            the weights of an uninterrupted training.
        source: Where the data came from, stored in run.json to open the data again.
        trust: Whether Python code stored in the run may be executed.

    Returns:
        The finished run.

    Raises:
        UserError: If the settings or the data do not fit the run that is resumed.
        TakenError: If the folder is taken.
    """
    with ExitStack() as stack:
        device = choose_device(settings or _settings_of(Path(folder)))
        processes = stack.enter_context(join_processes(device))
        run = _open(task, settings, Path(folder), resume, source, processes, trust)
        if processes.is_first:
            stack.enter_context(run.lock())
        processes.broadcast(None)  # wait until checkpoints are recovered
        stack.enter_context(use_threads(run.settings.threads))
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        must_test = "test" in task.splits
        if not run.finished or (must_test and all(line.get("split") != "test" for line in run.metrics())):
            Training(task, run, device, processes).train()
        processes.broadcast(None)  # wait until the last file is written
        return run


def _open(
    task: Task,
    settings: TrainSettings | None,
    folder: Path,
    resume: bool,
    source: Mapping[str, Any] | None,
    processes: ProcessGroup,
    trust: bool,
) -> Run:
    exists = processes.broadcast((folder / "run.json").exists())
    if not (resume and exists):
        if processes.is_first:
            Run.create(folder, settings or TrainSettings(), task, source)
        processes.broadcast(None)
        return Run.load(folder)
    run = Run.load(folder, trust=trust)
    if fingerprint(task) != run.record["data"]:
        raise UserError(f"{folder} was trained on other data than task {task.name!r} provides; start a new run")
    changed = {} if settings is None else settings.model_dump(exclude=CHANGEABLE)
    for name, value in changed.items():
        was = getattr(run.settings, name)
        if value != was:
            raise UserError(f"{folder} was trained with {name}={was}, not {value}; resume it without this setting")
    if settings is not None:
        if settings.threads != run.settings.threads and processes.is_first:
            warnings.warn(
                f"{folder} was trained with threads={run.settings.threads}, and continues with {settings.threads}: "
                "the order of sums changes, so it will not end with exactly the same weights",
                stacklevel=3,
            )
        run.settings = settings
    return run


def _settings_of(folder: Path) -> TrainSettings:
    return Run.load(folder).settings if (folder / "run.json").exists() else TrainSettings()


def choose_device(settings: TrainSettings) -> torch.device:
    """Return the device of the settings; "auto" is a GPU if one is available."""
    name = settings.device
    if name == "auto":
        return local_device(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        torch.zeros((), device=name)
        return local_device(torch.device(name))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"device {name!r} cannot be used: {reason}; the option --device takes cpu, cuda or cuda:1"
        ) from None
