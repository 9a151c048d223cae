"""The folder of runs: choose names for new runs, find and list existing ones."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.training.layout import COMPARISON_FILE, RUN_FILE, RUNS

if TYPE_CHECKING:  # needs torch, which takes long to import
    from seqloom.lab.training.run import Run


def choose_folder(task: str, model: str, name: str | None = None, runs: Path | str = RUNS) -> Path:
    """Return the folder for a new run: its name, or data and model with a free number.

    Raises:
        UserError: If the folder is taken, or several processes have no name to agree on.
    """
    if name is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "several processes train together and must agree on the run: give its folder with --out, or fit(name=...)"
        )
    if name is not None:
        folder = Path(runs) / name
        if (folder / RUN_FILE).exists() and is_first_process():
            raise UserError(f"{folder} already holds a run; continue it with --resume, or choose another folder")
        if folder.is_dir() and any(folder.iterdir()) and is_first_process():
            raise UserError(f"{folder} holds files that are not a run; choose another folder")
        return folder
    number = 1
    while (folder := Path(runs) / _number_name(task, model, number)).exists():
        number += 1
    return folder


def is_first_process() -> bool:
    """Return whether this process is the first that torchrun started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def find_latest(task: str, model: str, runs: Path | str = RUNS) -> str | None:
    """Return the name that `choose_folder` chose last for this data and model."""
    latest, number = None, 1
    while (Path(runs) / (name := _number_name(task, model, number)) / RUN_FILE).exists():
        latest, number = name, number + 1
    return latest


def _number_name(task: str, model: str, number: int) -> str:
    base = re.sub(r"[^\w.-]+", "_", f"{task}-{model.rpartition(':')[2]}")  # a cell from a file by its class name
    return base if number == 1 else f"{base}-{number}"


def find_run(name: Path | str, runs: Path | str = RUNS, trust: bool = False) -> Run:
    """Open a run by its folder or by its name in `runs`. With `trust`, Python code stored in it may be executed."""
    path = find_run_folder(name, runs)
    from seqloom.lab.training.run import Run

    return Run.load(path, trust=trust)


def find_run_folder(name: Path | str, runs: Path | str = RUNS) -> Path:
    """Return the folder of a run without reading it.

    Raises:
        UserError: If there is no such folder, or it is a comparison of several runs; the message lists runs.
    """
    path = Path(name)
    if not path.exists() and (Path(runs) / path).exists():
        path = Path(runs) / path
    for folder in (path, path.parent):
        if (folder / COMPARISON_FILE).exists() and not (path / RUN_FILE).exists():
            names = list_names(folder)
            hint = (suggest(path.name, names) if folder != path else "") or f"it has {', '.join(names) or 'none yet'}"
            asked = f"no model {path.name!r}" if folder != path else "several models"
            raise UserError(f"{folder} is a comparison with {asked}; {hint}: name one as {folder / 'best'}")
    if not path.exists():
        names = list_names(runs)
        hint = suggest(str(name), names) or f"{runs}/ holds {', '.join(names) or 'none'}"
        raise UserError(f"there is no run {str(name)!r}; {hint}")
    return path


def list_names(runs: Path | str = RUNS) -> list[str]:
    """Return the names of the runs in a folder, sorted."""
    return sorted(file.parent.name for file in Path(runs).glob(f"*/{RUN_FILE}"))
