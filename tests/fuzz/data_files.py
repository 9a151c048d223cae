"""Data files of every format, well-formed or damaged: read as another parser reads them, or refused in one line."""

from __future__ import annotations

import json
import math
import random
import resource
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.file_cases import Case, list_formats, make_case
from fuzz.forked_readers import fork_readers
from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.readers.delimited import MISSING
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Notes

LONGEST_MESSAGE = 2_000  # characters
FILE_SIZE = 1 << 30  # bytes that a process may write to one file


def prepare(work: Path) -> None:
    """Open a file of each format, so that what the readers import is known. Cases run in forks: they may crash."""
    for number, form in enumerate(list_formats()):
        with suppress(AssertionError):
            _check(random.Random(number), form, work / "case")


def check(draw: random.Random, work: Path) -> str:
    """Open one file and return its format and "read" or "refused".

    Raises:
        AssertionError: If a refusal is unclear, something was executed, or the file was read wrongly. What kills the
            process, takes too long or prints a panic is noticed outside.
    """
    return _check(draw, draw.choice(list_formats()), work / "case")


def _check(draw: random.Random, form: str, folder: Path) -> str:
    executed = watch_process()
    executed.clear()
    shutil.rmtree(folder, ignore_errors=True)  # of a case that crashed
    folder.mkdir(parents=True)
    try:
        outcome, problem = _open(make_case(draw, form), form, folder, executed)
        assert not problem, f"{form}: {outcome}: {problem}"
        return f"{form} {outcome}"
    finally:
        shutil.rmtree(folder)


@cache
def watch_process() -> list[str]:
    """Limit the files of this process, fork its readers, and return a list of what it executes of files' contents."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    fork_readers()
    executed: list[str] = []
    sys.addaudithook(lambda event, _: executed.append(event) if event in ("pickle.find_class", "os.system") else None)
    return executed


def _open(case: Case, form: str, folder: Path, executed: list[str]) -> tuple[str, str]:
    """Write and open the files of a case; return what happened, and what is wrong with that."""
    for name, data in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    path: Any = folder / case.path if isinstance(case.path, str) else tuple(folder / name for name in case.path)
    was_table_read = False
    try:
        table = read_source(path, make_reading(**case.options), Notes()).frame().collect()
        was_table_read = True
        if form.endswith("recordings") or form in (".wav", ".tar"):
            table = table.sort("file")["audio"].head(1).explode().alias("first").to_frame()
        problem = find_difference(table.to_dict(as_series=False), case.columns)
        del table
        if problem:
            return "read", problem
        task = open_task(path, **case.options)
        next(iter(task.batches("train", batch=4)))
        outcome, message = "read", ""
    except UserError as error:
        outcome, message = "refused", str(error)
    except OSError as error:  # the command line shows it in one line too
        outcome, message = "refused", str(error)
    if executed or list(folder.rglob("EXECUTED")) or Path("EXECUTED").exists():
        return outcome, f"something was executed: {executed}"
    names = [folder.name, *case.files]
    is_named = any(Path(name).name in message for name in names)
    if outcome == "refused" and ("\n" in message.strip() or len(message) > LONGEST_MESSAGE or not is_named):
        return outcome, f"unclear: {message[:LONGEST_MESSAGE]!r}"
    if outcome == "refused" and case.is_valid and not was_table_read:
        return outcome, f"a good file is refused: {message}"
    return outcome, ""


def find_difference(actual: Mapping[str, list[Any]], expected: Mapping[str, list[Any]] | None) -> str:
    """Return the first difference between the columns that were read and those expected; "" without one."""
    for name, column in (expected or {}).items():
        if name not in actual:
            return f"column {name!r} was not read; there are {list(actual)}"
        if len(actual[name]) != len(column):
            return f"column {name!r} has {len(actual[name])} values, not {len(column)}"
        for row, (one, other) in enumerate(zip(actual[name], column, strict=True)):
            if not is_same(one, other):
                return f"column {name!r}, row {row + 1}: read {one!r:.200}, not {other!r:.200}"
    return ""


def is_same(actual: Any, expected: Any) -> bool:  # a value of any type
    """Return whether two values are the same, where a text may have been read as what it says."""
    if isinstance(expected, (list, tuple)):
        is_list = isinstance(actual, (list, tuple)) and len(actual) == len(expected)
        return is_list and all(map(is_same, actual, expected))
    if actual is None:
        return expected is None or expected in MISSING or _is_nan(expected)
    if isinstance(actual, str):
        return actual == expected or actual == json.dumps(expected)
    if isinstance(actual, list) and isinstance(expected, str):
        return is_same(actual, json.loads(expected))
    if isinstance(expected, str):
        return any(_is_equal(float(actual), number) for number in _list_numbers(expected))
    if isinstance(actual, (int, float)) and isinstance(expected, (int, float)):
        is_huge = isinstance(expected, int) and abs(expected) >= 2**1000
        return not math.isfinite(actual) if is_huge else _is_equal(float(actual), float(expected))
    return bool(actual == expected)


def _list_numbers(text: str) -> list[float]:
    """List what a text says as a number, with a decimal point or comma."""
    numbers = []
    for spelling in (text, text.replace(".", "").replace(",", ".")):
        with suppress(ValueError):
            numbers.append(float(spelling))
    return numbers


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _is_equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-6)
