"""A training as the command line sees it: prepared, carried out or carried on, and told of."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.data.look import facts, said
from seqloom.lab.data.opening import open_data, reopen
from seqloom.lab.data.task import Task
from seqloom.lab.training.fit import check_model, train_new
from seqloom.lab.training.folders import RUNS, choose_folder, find_latest, find_run, list_names
from seqloom.lab.training.run import Run
from seqloom.lab.training.settings import TrainSettings
from seqloom.lab.training.train import train


@dataclass(frozen=True)
class PreparedTraining:
    """What is to be trained, where, and what to tell before."""

    task: Task
    settings: TrainSettings | None
    folder: Path
    source: Any
    resume: bool
    facts: list[str]
    trust: bool = False

    def run(self) -> Run:
        if self.resume:
            return train(self.task, self.settings, self.folder, resume=True, trust=self.trust)
        return train_new(self.task, self.settings or TrainSettings(), self.folder, self.source)

    @property
    def resume_command(self) -> str:
        where = [] if self.folder.parent == Path(RUNS) else ["--runs", str(self.folder.parent)]
        return shlex.join(["seqloom", "train", "--resume", "--name", self.folder.name, *where])


def prepare_new(
    data: str | None, name: str | None, runs: Path, settings: TrainSettings, options: Mapping[str, Any]
) -> PreparedTraining:
    """A new training."""
    if data is None:
        raise UserError("give the data to train on: a file, a folder or the name of a task (or a --config with it)")
    task, source = open_data(data, options)
    check_model(task, settings)
    folder = choose_folder(task.name, settings.model, name, runs)
    return PreparedTraining(
        task, settings, folder, source, False, [*facts(task), "", f"training {settings.model} in {folder}"]
    )


def prepare_resume(
    data: str | None,
    name: str | None,
    runs: Path,
    settings: TrainSettings,
    options: Mapping[str, Any],
    trust: bool = False,
) -> PreparedTraining:
    """One that was interrupted, under its own settings; a flag may change only what changes no result."""
    opened = None if data is None else open_data(data, options)[0]
    if name is None and opened is not None:
        name = find_latest(opened.name, settings.model, runs)
    if name is None:
        there = ", ".join(list_names(runs)) or "none"
        raise UserError(f"say which run goes on with --name; {runs}/ holds {there}")
    run = find_run(Path(runs) / name if (Path(runs) / name).exists() else name, runs, trust)
    changed = {field: getattr(settings, field) for field in settings.model_fields_set}
    task = reopen(run.record["source"]) if opened is None else opened
    asked = TrainSettings(**(run.settings.model_dump() | changed)) if changed else None
    return PreparedTraining(task, asked, run.folder, None, True, [*said(task), f"going on with {run.folder}"], trust)


def use_command(run: Run) -> str:
    """What one would do next."""
    kind = run.record["task"]["kind"]
    command = {"generate": "generate", "translate": "translate"}.get(kind, "predict")
    return shlex.join(["seqloom", command, str(run.folder), *([] if command == "generate" else ["FILE"])])
