"""Runs by name: where they are kept, and what they are called."""

from __future__ import annotations

import os
import re
from pathlib import Path

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.training.run import FILE, Run

RUNS = "runs"  # the folder where runs are kept, unless one says otherwise


def choose_folder(task: str, model: str, name: str | None = None, runs: Path | str = RUNS) -> Path:
    """Where a new run goes: under its name, or the data's and the model's with a free number."""
    if name is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("several processes must agree on the run: give it a name with --name")
    if name is not None:
        folder = Path(runs) / name
        if (folder / FILE).exists() and is_first_process():
            raise UserError(f"{folder} holds a run already; go on with it by --resume, or choose another --name")
        if folder.is_dir() and any(folder.iterdir()) and is_first_process():
            raise UserError(f"{folder} holds files that are no run; choose another --name")
        return folder
    number = 1
    while (folder := Path(runs) / _numbered(task, model, number)).exists():
        number += 1
    return folder


def is_first_process() -> bool:
    """Whether this one speaks for all that torchrun started, or is alone."""
    return os.environ.get("RANK", "0") == "0"


def find_latest(task: str, model: str, runs: Path | str = RUNS) -> str | None:
    """The name that `new_folder` gave last for this data and model."""
    found, number = None, 1
    while (Path(runs) / (name := _numbered(task, model, number)) / FILE).exists():
        found, number = name, number + 1
    return found


def _numbered(task: str, model: str, number: int) -> str:
    base = re.sub(r"[^\w.-]+", "_", f"{task}-{model.rpartition(':')[2]}")  # a person's own cell by its class
    return base if number == 1 else f"{base}-{number}"


def find_run(name: Path | str, runs: Path | str = RUNS, trust: bool = False) -> Run:
    """Open a run by its folder or by its name in `runs`. With `trust`, Python code stored in it may be executed."""
    path = Path(name)
    if not path.exists() and (Path(runs) / path).exists():
        path = Path(runs) / path
    if not path.exists():
        there = list_names(runs)
        hint = suggest(str(name), there) or f"{runs}/ holds {', '.join(there) or 'none'}"
        raise UserError(f"there is no run {str(name)!r}; {hint}")
    return Run.load(path, trust=trust)


def list_names(runs: Path | str = RUNS) -> list[str]:
    """Of the runs in a folder."""
    return sorted(file.parent.name for file in Path(runs).glob(f"*/{FILE}"))
