"""Write results as JSON lines, CSV or plain lines, to standard output or atomically to a file."""

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

FORMATS = ("jsonl", "csv", "lines")
Result = Mapping[str, Any]


def write_results(
    results: Iterable[Result], out: Path | None = None, form: str | None = None, separator: str = " "
) -> int:
    """Write results one by one and return their number.

    Args:
        out: The file. Default: standard output.
        form: "jsonl", "csv" or "lines". Default: from the file's suffix, otherwise "jsonl".
        separator: The separator of the items of a list in a CSV field.
    """
    form = form or (out.suffix.lstrip(".") if out and out.suffix else "jsonl")
    if form not in FORMATS:
        raise UserError(f"the format of results must be {' or '.join(FORMATS[:2])}, got {form!r}")
    count = 0
    with _open(out) as file:
        writers: dict[str, Callable[[Result], Any]] = {
            "csv": _csv_writer(file, separator),
            "lines": lambda result: file.write(" ".join(str(result["translation"]).splitlines()) + "\n"),
            "jsonl": lambda result: file.write(json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n"),
        }
        put = writers[form]
        for result in results:
            put(result)
            count += 1
    return count


def check_not_input(out: Path | None, file: str) -> None:
    """Raise a UserError if the results would overwrite the input file."""
    if out is not None and out.exists() and Path(file).exists() and out.samefile(file):
        raise UserError(f"--out: {out} is the input file and would be overwritten; choose another file")


@contextmanager
def _open(out: Path | None) -> Iterator[IO[str]]:
    """Open standard output, or a file that appears at the end."""
    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}")
    with write_atomically(out) as work, work.open("w", encoding="utf-8", newline="") as file:
        yield file


def _csv_writer(file: IO[str], separator: str) -> Callable[[Result], Any]:
    """Return a function that writes CSV rows; the keys of the first result are the headings.

    A dict inside a result becomes several columns, a list one field.
    """
    writer: csv.DictWriter[str] | None = None
    warned = False

    def put(result: Result) -> None:
        nonlocal writer, warned
        checked = {name: _escape_formula(value) for name, value in _flatten(result, separator)}
        if any(changed for _, changed in checked.values()) and not warned:
            warned = True
            warnings.warn(
                "fields that begin with = + - or @ are prefixed with ' so that a spreadsheet does not run them "
                "as formulas; --format jsonl writes them unchanged",
                stacklevel=2,
            )
        flat = {name: value for name, (value, _) in checked.items()}
        if writer is None:
            writer = csv.DictWriter(file, list(flat), restval="", extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
        writer.writerow(flat)

    return put


def _escape_formula(value: object) -> tuple[object, bool]:
    """Escape a field so that a spreadsheet does not read it as a formula; return whether it was changed."""
    if not isinstance(value, str) or len(value) < 2 or value[0] not in "=+-@\t\r":
        return value, False
    try:
        float(value)
    except ValueError:
        return f"'{value}", True
    return value, False


def _flatten(result: Result, separator: str) -> Iterator[tuple[str, object]]:
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}:{key}", _format_field(inner, separator)) for key, inner in value.items())
        else:
            yield name, _format_field(value, separator)


def _format_field(value: object, separator: str) -> object:
    """Join the items of a list; lists inside it, such as the labels of each step, are separated by blanks."""
    if not isinstance(value, list):
        return value
    if any(isinstance(item, list) for item in value):
        return " ".join(str(_format_field(item, separator)) for item in value)
    return separator.join(map(str, value))
