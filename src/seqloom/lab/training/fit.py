"""The lab in Python: data in, a trained run out."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.opening import open_data
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.task import Task
from seqloom.lab.training.folders import RUNS, choose_folder
from seqloom.lab.training.model import build
from seqloom.lab.training.run import WHICH, Run, TakenError
from seqloom.lab.training.settings import TrainSettings
from seqloom.lab.training.train import train

_ALONE = threading.RLock()


def fit(data: Any, model: str = "gru", *, name: str | None = None, runs: Path | str = RUNS, **settings: Any) -> Run:
    """Train a model on data, and return the finished run.

        run = seqloom.fit("reviews.csv", model="bi_lstm", target="stars", epochs=5)
        run.predict(["What a film!"])

    `data` is a file, a folder, a frame of polars or pandas, a dict of splits, the name of a task or
    a `Task`. `settings` are those of `seqloom train`: how the data are read, and how the model is
    built and trained. The run is the folder `name` in `runs`; by default a new one is made.
    """
    training, reading = split_settings({"model": model} | settings)
    task, source = open_data(data, reading)
    check_model(task, training)
    return train_new(task, training, choose_folder(task.name, model, name, runs), source)


def train_new(task: Task, settings: TrainSettings, folder: Path, source: Any) -> Run:
    """A new run. Settings that turn out wrong before the first step leave no folder behind."""
    there = folder.exists()
    try:
        with isolate_random():
            return train(task, settings, folder, source=source)
    except TakenError:
        raise  # the folder is another process's
    except ValueError:
        if not there and not any((folder / which).exists() for which in WHICH):
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def isolate_random() -> Iterator[None]:
    """Afterwards torch's generators are where they were; meanwhile no other thread's training draws from them."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with _ALONE, torch.random.fork_rng(devices=cuda):
        yield


def check_model(task: Task, settings: TrainSettings) -> None:
    """Raise what is wrong with the model before anything is on disk."""
    check_effects(task, settings)
    with torch.random.fork_rng(devices=[]):
        build(task, settings)


def check_effects(task: Task, settings: TrainSettings) -> None:
    """Raise where a setting would do nothing; runs of before that have it are still loaded."""
    if task.kind == "tag" and settings.crf and settings.label_smoothing:
        raise UserError(
            f"label_smoothing={settings.label_smoothing} does nothing with crf=True, "
            "which scores whole chains of tags; leave one of them out"
        )


def split_settings(settings: Mapping[str, Any]) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings of the training, checked, and those of the reading."""
    known = [*TrainSettings.model_fields, *Reading.model_fields]
    for name in settings:
        if name not in known:
            hint = suggest(name, known) or f"there are {', '.join(known)}"
            raise UserError(f"no setting {name!r}; {hint}")
    reading = {name: value for name, value in settings.items() if name in Reading.model_fields}
    try:
        return TrainSettings(**{name: value for name, value in settings.items() if name not in reading}), reading
    except ValidationError as error:
        first = error.errors()[0]
        what, told = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise UserError(f"{what}: {told}, got {first['input']!r}" if what else told) from None
