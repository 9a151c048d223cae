"""Run folders with one mutated file: the same prediction, a warning, or one line; never a silent change."""

from __future__ import annotations

import random
import shutil
import warnings
from functools import cache
from pathlib import Path

import numpy as np

from fuzz.mutation import mutate
from seqloom.core.errors import UserError
from seqloom.lab.training.fit import fit
from seqloom.lab.training.results import tabulate_runs
from seqloom.lab.training.run import Run

ROWS = ["aei", "bcd", "xyz zyx"]


@cache
def sample(work: Path) -> tuple[Path, list[dict]]:
    """Return a trained run and what it predicts."""
    numbers = np.random.default_rng(0)
    kinds = {"vowels": "aeiou", "consonants": "bcdfg"}
    lines = [
        f"{''.join(numbers.choice(list(letters), 5))},{kind}" for _ in range(30) for kind, letters in kinds.items()
    ]
    (work / "words.csv").write_text("\n".join(["word,label", *lines]) + "\n")
    run = fit(work / "words.csv", "gru", runs=work / "runs", name="words", hidden=4, embedding=4, epochs=2, batch=16)
    return run.folder, run.predict(ROWS)


def check(draw: random.Random, work: Path) -> str:
    """Mutate a file of a run and use the run; return what happened: "same", "warned" or "refused"."""
    folder, expected = sample(work)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = draw.choice(files)
    whole = chosen.read_bytes()
    chosen.write_bytes(mutate(draw, whole))
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert len(tabulate_runs(folder.parent)) == 1
            refused, actual = "", None
            try:
                actual = Run.load(folder).predict(ROWS)
            except UserError as error:
                refused = str(error)
        if refused:
            assert "\n" not in refused, refused
            assert chosen.name in refused or "damaged" in refused, refused
            return "refused"
        if any("damaged" in str(one.message) or "missing" in str(one.message) for one in told):
            return "warned"
        assert actual == expected, f"{chosen.name}: {actual} in place of {expected}"
        return "same"
    finally:
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        chosen.write_bytes(whole)
