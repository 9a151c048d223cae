"""Comparisons that were changed by a person who makes the digests right: resumed, or refused in one line."""

from __future__ import annotations

import random
import shutil
import warnings
from functools import cache
from pathlib import Path
from unittest import mock

import torch

from fuzz.forgery import Copy, Place, attempt, forge, write_cell
from seqloom.lab.compare import timing
from seqloom.lab.compare.folder import resume_comparison, start_comparison, store_models
from seqloom.lab.compare.results import collect_results
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.jobs import runner
from seqloom.lab.training.run import Run


@cache
def sample(work: Path) -> Copy:
    """Return a finished comparison of a layer and a user's cell; its folder is the one that is changed."""
    settings = CompareSettings(models=f"rnn,{write_cell(work)}:Mine", steps=3, seeds=1, tune=1, parameters=200)
    comparison = start_comparison("adding", {"steps": 5, "valid": 8, "test": 8}, settings, work / "forged" / "compared")
    for result in runner.run(comparison.jobs(), runner.Here(), comparison.folder / "jobs"):
        comparison.results[result.key] = result
    store_models(comparison, collect_results(comparison))
    whole = shutil.move(comparison.folder, work / "comparison")
    return Copy(Path(whole), comparison.folder)


def use(folder: Path) -> None:
    """Resume a comparison up to its first job, and use the runs it has stored."""
    with mock.patch.object(timing, "SAMPLED_BATCHES", 4):  # of the built-in task, which no change of a folder reaches
        comparison = resume_comparison(None, {}, CompareSettings(), folder)
        next(comparison.jobs())
    for file in sorted(folder.glob("*/run.json")):
        Run.load(file.parent).predict([[[0.5, 1.0], [0.1, 0.0]]])


def check(draw: random.Random, work: Path) -> str:
    """Change a comparison and use it; return what happened."""
    place, folder = Place(work), sample(work).restore()
    notes = forge(draw, folder, place)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            return attempt(lambda: use(folder), "compared")
    except BaseException as error:
        error.add_note(str(notes))
        raise
    finally:
        place.check()
