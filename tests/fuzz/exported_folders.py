"""Folders of `seqloom export --to safetensors`, changed by a person: they are used, or refused in one line."""

from __future__ import annotations

import random
import warnings
from functools import cache
from pathlib import Path

from fuzz.forgery import Copy, Place, attempt, forge
from fuzz.run_folders import ROWS, sample
from seqloom.lab.data.pipeline.new_rows import iterate_rows
from seqloom.lab.export.export import export_run
from seqloom.lab.export.hub_folder import read_hub_folder
from seqloom.lab.training.predict import predict_pieces
from seqloom.lab.training.run import Run


@cache
def exported(work: Path) -> Copy:
    """Return the copy of an exported run that is changed."""
    export_run(Run.load(sample(work)[0]), "safetensors", work / "exported")
    (work / "exported" / "cell.py").write_text("")
    return Copy(work / "exported", work / "forged" / "model")


def use(folder: Path) -> None:
    """Read the folder and predict with it, as `Pretrained` does."""
    model, task = read_hub_folder(folder)
    list(predict_pieces(model, task, iterate_rows(task, ROWS), True))


def check(draw: random.Random, work: Path) -> str:
    """Change an exported folder and use it; return what happened."""
    place, folder = Place(work), exported(work).restore()
    notes = forge(draw, folder, place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return attempt(lambda: use(folder), "model")
    except BaseException as error:
        error.add_note(str(notes))
        raise
    finally:
        place.check()
