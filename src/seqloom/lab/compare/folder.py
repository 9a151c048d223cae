"""A comparison on disk.

compare.json    the settings, and where the data came from; written once
plan.json       which models are trained, and for how many steps; written once, before the first training
deadlines.json  when each stage of the training must end; written whenever the comparison starts or is resumed
cells/          copies of the files of users' cells (see cells.py); written once
jobs/ runs/     results of all jobs, and the trainings and baselines
gru/ ...        the best run of each model and each baseline, for predict, evaluate, generate, translate
best/           the one of them that is recommended
report.html, report.md, study.json, a CSV file for each table
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, count, islice, takewhile
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import UserError
from seqloom.lab.compare import cells
from seqloom.lab.compare.data import STRIDES, choose_strides, sample_held_out
from seqloom.lab.compare.folds import add_fold, open_folds
from seqloom.lab.compare.rows import Results, Row
from seqloom.lab.compare.search import Search
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.registry import open_data, reopen
from seqloom.lab.files import checkpoint, scratch, sealed
from seqloom.lab.files.scratch import refuse_links
from seqloom.lab.files.trust import check, remember
from seqloom.lab.kinds.baselines.registry import baselines
from seqloom.lab.training.layout import COMPARISON_FILE
from seqloom.lab.training.run import CELL, fingerprint

FORMAT = 1
BEST = "best"
WRITTEN = (
    *("plan.json", "deadlines.json", "jobs", "runs", cells.FOLDER, BEST),
    *("report.html", "report.md", "study.json", "leaderboard.csv"),
)
DEFAULT_PARENT = Path("comparisons")
DIGITS, DIGITS_BUDGET, DEFAULT_BUDGET = "digits", "90s", "10m"
PROCESSES_PER_GPU = 4
CHANGEABLE = {"workers", "ray"}  # settings that may differ when resuming: they do not affect results


def start_comparison(
    data: str | None,
    options: Mapping[str, Any],
    settings: CompareSettings,
    out: Path | None,
    began: float | None = None,
) -> Search:
    """Create a comparison and its folder.

    Args:
        data: the data, or None for handwritten digits.
        out: the folder, by default the next free one in comparisons/.
        began: when the budget began, in seconds since the epoch. Default: when the data have been read.

    Raises:
        UserError: if the folder is in use, or the data lack validation or test rows.
    """
    if out is not None:
        _check_out(out)
    if settings.tune and find_spec("optuna") is None:
        raise UserError("--tune needs the package optuna: pip install optuna")
    task, source = open_data(DIGITS if data is None else data, options)
    for split in ("valid", "test"):
        if split not in task.splits:
            raise UserError(f"task {task.name!r} has no {split!r} rows, which a comparison needs; set aside a split")
    if settings.budget is None and settings.steps is None:
        settings = settings.model_copy(update={"budget": DIGITS_BUDGET if data is None else DEFAULT_BUDGET})
    folds = open_folds(task, source, settings.folds)
    if folds:
        task, settings = folds[0], settings.model_copy(update={"folds": len(folds)})
    folder = out or next_folder(task.name)
    workers = settings.workers or default_workers()
    strides = {} if settings.steps is not None else choose_strides(task, settings.seconds)
    source = (source or {}) | ({STRIDES: strides} if strides else {})
    files = cells.read_files(settings.models)
    models = cells.load_copies(folder.resolve(), settings.models, files)
    comparison = Search(folder, settings, source, sample_held_out(task, strides), workers, began, models=models)
    for name in [*comparison.candidates, *baselines(task)]:
        if (folder / choose_name(name)).exists():
            raise UserError(f"--out: {folder / choose_name(name)} exists; choose another folder")
    record = {"format": FORMAT, "settings": settings.model_dump(), "source": source, "workers": workers}
    record |= {"cells": {name: file.sha256 for name, file in files.items()}, "data": fingerprint(task)}
    for file in files.values():
        remember(file.code)
    _create(folder, sealed.dumps(record, indent=1), files)
    return comparison


def _check_out(out: Path) -> None:
    if (out / COMPARISON_FILE).exists():
        raise UserError(f"--out: {out} already holds a comparison; continue it with --resume, or choose another folder")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; name a folder")
    for place in (out / name for name in WRITTEN if (out / name).exists()):
        raise UserError(f"--out: {place} exists and does not belong to a comparison; choose another folder")


def _create(folder: Path, record: bytes, files: cells.CellFiles) -> None:
    """Write the cells, then the record. A folder that does not exist appears with them, whole or not at all."""
    if folder.exists():
        cells.write_copies(folder, files)
        checkpoint.write_file(folder / COMPARISON_FILE, record)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = scratch.choose_name(folder)
    try:
        work.mkdir()
        cells.write_copies(work, files)
        checkpoint.write_file(work / COMPARISON_FILE, record)
        work.rename(folder)
        checkpoint.sync(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def resume_comparison(
    data: str | None,
    options: Mapping[str, Any],
    settings: CompareSettings,
    out: Path | None,
    trust: bool = False,
    began: float | None = None,
) -> Search:
    """Open an interrupted comparison with its stored settings.

    Args:
        data: the data, from which the folder follows if `out` is None.
        settings: settings that were set explicitly must match the stored ones, except the number of workers.
        trust: whether the code of cells in the folder may be executed.
        began: when the budget began again, in seconds since the epoch. Default: when the data have been read.

    Raises:
        UserError: if there is no comparison, or its settings or data have changed.
    """
    folder = out or _latest_folder(open_data(DIGITS if data is None else data, options)[0].name)
    if not (folder / COMPARISON_FILE).is_file():
        raise UserError(f"{folder} holds no comparison to resume; name its folder with --out")
    record = sealed.loads((folder / COMPARISON_FILE).read_bytes(), folder / COMPARISON_FILE, FORMAT)
    with sealed.interpret(folder / COMPARISON_FILE):
        before = CompareSettings(**record["settings"])
        before = before.model_copy(update={"folds": before.folds or 1})
    for name in settings.model_fields_set - CHANGEABLE:
        was, now = getattr(before, name), getattr(settings, name)
        if was != now:
            raise UserError(f"{folder} was started with {name}={was}, not {now}; resume it without --{name}")
    refuse_links(folder)
    with sealed.interpret(folder / COMPARISON_FILE):
        digests = {str(file): str(digest) for file, digest in record.get("cells", {}).items()}
    files = cells.read_copies(folder, before.models, digests, folder / COMPARISON_FILE, trust)
    _check_runs(folder, trust)
    for file in files.values():
        remember(file.code)
    models = cells.load_copies(folder.resolve(), before.models, files)
    with sealed.interpret(folder / COMPARISON_FILE):
        data_then, workers = record["data"], int(record["workers"])
        source: dict[str, Any] = dict(record.get("source") or {})
        strides = {str(split): int(stride) for split, stride in source.get(STRIDES, {}).items()}
        first = add_fold(source, 0, before.folds or 1)
    task = reopen(first)
    if fingerprint(task) != data_then:
        raise UserError(f"the data of {task.name!r} have changed since {folder} was started; start a new comparison")
    with sealed.interpret(folder / COMPARISON_FILE):
        task = sample_held_out(task, strides)
    try:
        return Search(folder, before, source, task, workers, began, models=models)
    except UserError as error:
        raise UserError(f"{folder / COMPARISON_FILE}: {error}") from error


def _check_runs(folder: Path, trust: bool) -> None:
    """Raise an error if a run has a cell that this user has not trained with; with `trust`, record it.

    The processes that resume the runs check again what they execute.
    """
    for file in folder.rglob(CELL):
        if file.is_file():
            code = file.read_bytes()
            check(code, file, folder, trust)
            remember(code)


def discard_comparison(comparison: Search) -> None:
    """Remove the files of a comparison that failed before its plan, so that a corrected command can use its folder."""
    jobs, runs = comparison.folder / "jobs", comparison.folder / "runs"
    for folder in chain(jobs.glob("baseline-*"), jobs.glob("speed-*"), runs.glob("baseline-*")):
        shutil.rmtree(folder, ignore_errors=True)
    (comparison.folder / COMPARISON_FILE).unlink(missing_ok=True)
    shutil.rmtree(comparison.folder / cells.FOLDER, ignore_errors=True)
    for folder in (jobs, runs, comparison.folder):
        with suppress(OSError):  # not empty: it holds other files
            folder.rmdir()


def default_workers() -> int:
    """Return the number of cores this process may use; with GPUs, at most PROCESSES_PER_GPU for each."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = torch.cuda.device_count()
    return min(count, gpus * PROCESSES_PER_GPU) if gpus else count


def next_folder(name: str) -> Path:
    """Return the next folder in comparisons/ that does not exist: NAME, NAME-2, ..."""
    return next(folder for folder in _number_folders(name) if not folder.exists())


def _latest_folder(name: str) -> Path:
    """Return the last folder of those that exist without a gap; NAME if there is none."""
    return [DEFAULT_PARENT / name, *takewhile(Path.exists, islice(_number_folders(name), 1, None))][-1]


def _number_folders(name: str) -> Iterator[Path]:
    return (DEFAULT_PARENT / (name if number == 1 else f"{name}-{number}") for number in count(1))


def choose_name(model: str) -> str:
    """Return the name of a model's or baseline's folder: gru, bi_transformer-2, tf-idf-logistic-regression."""
    name = re.sub(r"[^\w.]+", "-", model.rpartition("/")[2]).strip("-")
    return name if ".py" in name else name.lower()


def find_run_of(comparison: Search, row: Row) -> Path | None:
    """Return the run of a row: that of the seed or settings with the best validation score."""
    factory = comparison.job_factory
    if row.baseline:
        return factory.baseline_folder(row.name) if row.test is not None else None
    finals = comparison.finals_of(row.name)
    if comparison.folds > 1:
        finals = finals[:1]  # the first fold, whose task is the comparison's
    trials = [t for t in finals if comparison.final_folder(t)] or comparison.trials.get(row.name, [])
    trials = [t for t in trials if comparison.latest_value(t)]
    return factory.run_folder(min(trials, key=comparison.rank_of)) if trials else None


def store_models(comparison: Search, results: Results) -> Path | None:
    """Put the run of each row into the folder under the row's name, and the recommended one as `best`.

    Other runs that were stopped early are removed; the results of their jobs hold their curves.

    Returns:
        The folder of the recommended run, if there is one.
    """
    runs = {row.name: run for row in results.rows if (run := find_run_of(comparison, row)) and run.exists()}
    for name, run in runs.items():
        _copy_run(run, comparison.folder / choose_name(name), link=True)
    finals = [comparison.job_factory.run_folder(trial) for trials in comparison.finalists for trial in trials]
    for run in (comparison.folder / "runs").glob("*"):
        if run not in finals and run not in runs.values():
            shutil.rmtree(run, ignore_errors=True)
    if results.chosen not in runs:
        return None
    best = comparison.folder / BEST
    _copy_run(runs[results.chosen], best)
    return best


def _copy_run(run: Path, place: Path, link: bool = False) -> None:
    """Copy a run, whole or not at all; with `link`, its files take no space if the file system has hard links."""
    work = scratch.choose_name(place)
    shutil.rmtree(work, ignore_errors=True)
    try:
        shutil.copytree(run, work, copy_function=_link_or_copy if link else shutil.copy2)
        shutil.rmtree(place, ignore_errors=True)
        work.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
