"""A comparison on disk.

compare.json    the settings, and where the data came from; written once
plan.json       what is trained and how far; written once, before the first training
jobs/ runs/     results of all jobs, and the trainings
best/           the run of the winner, for predict, evaluate, generate, translate
report.html, report.md, study.json, a CSV for each table
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import UserError
from seqloom.lab.compare.search import Comparison
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.compare.story import winner
from seqloom.lab.compare.table import Table
from seqloom.lab.data.opening import open_data, reopen
from seqloom.lab.data.task import Task
from seqloom.lab.files import scratch, sealed
from seqloom.lab.files.trust import check, remember
from seqloom.lab.training import checkpoint
from seqloom.lab.training.run import CELL, fingerprint
from seqloom.layers.registry import BI_PREFIX

FILE, FORMAT = "compare.json", 1
OURS = ("plan.json", "jobs", "runs", "best", "report.html", "report.md", "study.json", "leaderboard.csv")
PLACE = Path("comparisons")  # where folders are made that nobody names
DIGITS, SOON = "digits", "90s"  # the embedded data, and their budget
AT_A_GPU = 4  # processes
ANYWHERE = {"workers", "ray"}  # settings that change no result


def started(data: str | None, options: Mapping[str, Any], settings: CompareSettings, out: Path | None) -> Comparison:
    """A new one."""
    if out is not None and (out / FILE).exists():
        raise UserError(f"{out} holds a comparison already; go on with it by --resume, or name another folder")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; name a folder")
    for place in [out / name for name in OURS if (out / name).exists()] if out is not None else ():
        raise UserError(f"--out: {place} is there and is no comparison's; name a new folder")
    if settings.tune and find_spec("optuna") is None:
        raise UserError("--tune needs the package optuna: pip install optuna")
    task, source = open_data(DIGITS if data is None else data, options)
    _check(task)
    if settings.budget is None and settings.steps is None:
        settings = settings.model_copy(update={"budget": SOON if data is None else "10m"})
    folder = out or _free(task.name)
    workers = settings.workers or cores()
    made = Comparison(folder, settings, source or {}, task, workers)
    record = {"format": FORMAT, "settings": settings.model_dump(), "source": source, "workers": workers}
    for file in _named(settings.models):
        remember(file.read_bytes())
    _create(folder, sealed.dumps(record | {"data": fingerprint(task)}, indent=1))
    return made


def _create(folder: Path, record: bytes) -> None:
    """Write the record. A folder that does not exist appears with the record in it, whole or not at all."""
    if folder.exists():
        checkpoint.write_file(folder / FILE, record)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = scratch.choose_name(folder)
    try:
        work.mkdir()
        checkpoint.write_file(work / FILE, record)
        work.rename(folder)
        checkpoint.sync(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def resumed(
    data: str | None, options: Mapping[str, Any], settings: CompareSettings, out: Path | None, trust: bool = False
) -> Comparison:
    """Open a comparison that was interrupted, under its own settings. With `trust`, its code may be executed."""
    folder = out or _latest(open_data(DIGITS if data is None else data, options)[0].name)
    try:
        stored = (folder / FILE).read_bytes()
    except OSError:
        raise UserError(f"{folder} holds no comparison to go on with; name its folder with --out") from None
    record = sealed.loads(stored, folder / FILE, FORMAT)
    with sealed.interpret(folder / FILE):
        before = CompareSettings(**record["settings"])
    for name in settings.model_fields_set - ANYWHERE:
        was, now = getattr(before, name), getattr(settings, name)
        if was != now:
            raise UserError(f"{folder} was started with {name}={was}, not {now}; resume it as it is")
    _check_code(folder, before.models, trust)
    with sealed.interpret(folder / FILE):
        data_then, workers = record["data"], int(record["workers"])
    source: dict[str, Any] = record.get("source") or {}
    task = reopen(source)
    if fingerprint(task) != data_then:
        raise UserError(f"{folder} was started on other data than {task.name!r} has now; start a new comparison")
    return Comparison(folder, before, source, task, workers)


def _check_code(folder: Path, models: Sequence[str], trust: bool) -> None:
    """Raise an error if resuming would execute code that this user has not trained with; with `trust`, record it."""
    for file in (*_named(models), *folder.rglob(CELL)):
        if not file.is_file():
            raise UserError(f"{folder} needs the file {file}, which is missing; put it back")
        code = file.read_bytes()
        check(code, file, folder, trust)
        remember(code)  # the jobs check it again, in processes of their own


def _named(models: Sequence[str]) -> list[Path]:
    """Return the files of those models that are cells from files."""
    return [Path(model.removeprefix(BI_PREFIX).rpartition(".py:")[0] + ".py") for model in models if ".py:" in model]


def given_up(found: Comparison) -> None:
    """Remove what one has written that came to no plan: the same command, corrected, may use its folder."""
    jobs = found.folder / "jobs"
    for job in chain(jobs.glob("baseline-*"), jobs.glob("speed-*")):
        shutil.rmtree(job, ignore_errors=True)
    (found.folder / FILE).unlink(missing_ok=True)
    for folder in (jobs, found.folder):
        with suppress(OSError):  # it holds something else
            folder.rmdir()


def _check(task: Task) -> None:
    for split in ("valid", "test"):
        if split not in task.splits:
            raise UserError(f"task {task.name!r} has no {split!r} rows, and a comparison needs them; give a split")


def cores() -> int:
    """Those that this process may use; of those that share a GPU, no more than do it good."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = torch.cuda.device_count()
    return min(count, gpus * AT_A_GPU) if gpus else count


def _free(name: str) -> Path:
    number = 1
    while (folder := _numbered(name, number)).exists():
        number += 1
    return folder


def _latest(name: str) -> Path:
    number = 1
    while _numbered(name, number + 1).exists():
        number += 1
    return _numbered(name, number)


def _numbered(name: str, number: int) -> Path:
    return PLACE / (name if number == 1 else f"{name}-{number}")


def tidy(found: Comparison, table: Table) -> Path | None:
    """The winner's run as `best`; runs that were stopped early are removed, their curves being in their results."""
    best = winner(found, table)
    if best is None:
        return None
    work, place = found.folder / ".best", found.folder / "best"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(found.work.run(best), work)
    shutil.rmtree(place, ignore_errors=True)
    work.rename(place)
    kept = {found.work.run(trial).name for trials in found.finalists for trial in trials}
    for run in (found.folder / "runs").iterdir():
        if run.name not in kept:
            shutil.rmtree(run, ignore_errors=True)
    return place
