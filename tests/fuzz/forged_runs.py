"""Run folders that were changed by a person who makes the digests right: they are used, or refused in one line."""

from __future__ import annotations

import random
import warnings
from functools import cache
from pathlib import Path

import torch

from fuzz.forgery import Copy, Place, attempt, forge, write_cell
from fuzz.run_folders import ROWS, sample
from seqloom.lab.data.registry import open_data, reopen
from seqloom.lab.training.fit import fit
from seqloom.lab.training.predict import generate
from seqloom.lab.training.results import tabulate_runs
from seqloom.lab.training.run import Run
from seqloom.lab.training.train import train

SMALL = {"hidden": 4, "embedding": 4, "batch": 4, "steps": 2, "validate_every": 1}


@cache
def samples(work: Path) -> list[Path]:
    """Return runs: of a file, of a user's cell on a built-in task, and of a text."""
    words, _ = sample(work)
    cell = write_cell(work)
    task, _ = open_data("adding", {"steps": 5, "valid": 8, "test": 8})
    assert task.kind == "regress"
    (work / "text.txt").write_text("\n".join(f"word{i * i % 17}" for i in range(400)))
    text = fit(work / "text.txt", "gru", runs=work / "others", name="text", unit="characters", lookback=8, **SMALL)
    built_in = {"runs": work / "others", **SMALL}
    mine = fit("adding", f"{cell}:Mine", name="mine", **built_in)
    return [words, text.folder, mine.folder]


@cache
def copies(work: Path) -> list[Copy]:
    """Return the copies that are changed, each in a folder of its own."""
    return [Copy(whole, work / "forged" / whole.name / "run") for whole in samples(work)]


def use(folder: Path) -> None:
    """Do with a run what the commands do."""
    tabulate_runs(folder.parent)
    run = Run.load(folder)
    if run.task.kind == "generate":
        list(generate(run, ["word"], max_tokens=3))
    else:
        run.predict([[[0.5, 1.0], [0.1, 0.0]]] if run.task.encoding is None else ROWS)
    run = Run.load(folder)
    train(reopen(run.record["source"]), None, folder, resume=True)


def check(draw: random.Random, work: Path) -> str:
    """Change a run and use it; return what happened."""
    copied = draw.choice(copies(work))
    place, folder = Place(work), copied.restore()
    notes = forge(draw, folder, place)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            return attempt(lambda: use(folder), "run")
    except BaseException as error:
        error.add_note(f"{copied.whole.name}: {notes}")
        raise
    finally:
        place.check()
