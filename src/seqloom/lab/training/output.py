"""Results as JSON lines, CSV or plain lines, to standard output or to a file that appears when it is complete."""

from __future__ import annotations

import csv
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from seqloom.core.errors import UserError
from seqloom.lab.files.scratch import write_atomically

FORMS = ("jsonl", "csv", "lines")
Result = Mapping[str, Any]


def write_results(results: Iterable[Result], out: Path | None = None, form: str | None = None) -> int:
    """Write them one by one and say how many. The form follows from the file's name; else JSON lines."""
    form = form or (out.suffix.lstrip(".") if out and out.suffix else "jsonl")
    if form not in FORMS:
        raise UserError(f"results are written as {' or '.join(FORMS[:2])}, got {form!r}")
    count = 0
    with _opened(out) as file:
        put = {"csv": _csv, "lines": _plain, "jsonl": _json}[form](file)
        for result in results:
            put(result)
            count += 1
    return count


def check_not_input(out: Path | None, file: str) -> None:
    """Results never take the place of the rows that they are of."""
    if out is not None and out.exists() and Path(file).exists() and out.samefile(file):
        raise UserError(f"--out: {out} is the input file and would be overwritten; choose another file")


@contextmanager
def _opened(out: Path | None) -> Iterator[IO[str]]:
    """Standard output, or a new file that takes its name at the end."""
    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}")
    with write_atomically(out) as work, work.open("w", encoding="utf-8", newline="") as file:
        yield file


def _json(file: IO[str]) -> Callable[[Result], Any]:
    return lambda result: file.write(json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n")


def _plain(file: IO[str]) -> Callable[[Result], Any]:
    """The translation alone; a line each, whatever is in it."""
    return lambda result: file.write(" ".join(str(result["translation"]).splitlines()) + "\n")


def _csv(file: IO[str]) -> Callable[[Result], Any]:
    """The first result's keys are the heading; a dict within becomes columns, a list of words one field."""
    writer: csv.DictWriter[str] | None = None
    told = False

    def put(result: Result) -> None:
        nonlocal writer, told
        checked = {name: _harmless(value) for name, value in _flat(result)}
        if any(changed for _, changed in checked.values()) and not told:
            told = True
            warnings.warn(
                "a ' was put before fields that begin with = + - or @, so that a spreadsheet does not run them "
                "as formulas; --format jsonl writes them unchanged",
                stacklevel=2,
            )
        flat = {name: value for name, (value, _) in checked.items()}
        if writer is None:
            writer = csv.DictWriter(file, list(flat), restval="", extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
        writer.writerow(flat)

    return put


def _harmless(value: Any) -> tuple[Any, bool]:
    """Return a field that a spreadsheet does not take for a formula, and whether it was changed."""
    if not isinstance(value, str) or len(value) < 2 or value[0] not in "=+-@\t\r":
        return value, False
    try:
        float(value)
    except ValueError:
        return f"'{value}", True
    return value, False


def _flat(result: Result) -> Iterator[tuple[str, Any]]:
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}:{key}", _field(inner)) for key, inner in value.items())
        else:
            yield name, _field(value)


def _field(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
