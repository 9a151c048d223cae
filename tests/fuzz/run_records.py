"""Run folders whose records were rewritten with valid digests: they are used, or refused in one line.

A person who writes run.json by hand can make its digest right. Such a run may predict anything, but the mistake is
named, nothing is executed and no memory is claimed that the weights do not need.
"""

from __future__ import annotations

import copy
import json
import random
import warnings
from pathlib import Path
from typing import Any

from fuzz.run_folders import ROWS, sample
from seqloom.core.errors import UserError
from seqloom.lab.files import sealed
from seqloom.lab.files.sealed import KEY
from seqloom.lab.training.results import tabulate_runs
from seqloom.lab.training.run import Run

STRANGE = (None, True, False, 0, -1, 1, 65536, 10**9, 10**30, 1.5, 1e308, "", "x", "evil.py:X", "\u0000", [], {}, [[]])


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the places in a JSON document, outer ones first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [p for key, v in inner for p in list_paths(v, (*path, key))]


def change(draw: random.Random, record: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the record with one place removed or filled with a strange value, and a note of it."""
    record = copy.deepcopy(record)
    *way, last = draw.choice(list_paths(record))
    at = record
    for key in way:
        at = at[key]
    if draw.random() < 0.2:
        del at[last]
        return record, f"{(*way, last)} removed"
    at[last] = draw.choice(STRANGE)
    return record, f"{(*way, last)} = {at[last]!r}"


def check(draw: random.Random, work: Path) -> str:
    """Change one record of a run and use the run; return what happened: "used" or "refused"."""
    folder, _ = sample(work)
    files = [f for f in sorted(folder.rglob("*.json")) if KEY in json.loads(f.read_text())]
    chosen = draw.choice(files)
    whole = chosen.read_bytes()
    record = json.loads(whole)
    del record[KEY]
    record, note = change(draw, record)
    chosen.write_bytes(sealed.dumps(record))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refused = ""
            try:
                tabulate_runs(folder.parent)
                Run.load(folder).predict(ROWS)
            except UserError as error:
                refused = str(error)
        assert "\n" not in refused, refused
        assert not refused or folder.name in refused, refused
        return "refused" if refused else "used"
    except BaseException as error:
        error.add_note(f"{chosen.relative_to(folder)}: {note}")
        raise
    finally:
        chosen.write_bytes(whole)
