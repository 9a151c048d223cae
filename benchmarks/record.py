"""Shared by the benchmark scripts: flags, timing, and the JSON record of a run.

python benchmarks/record.py FILE...     rewrite records in the compact form, without changing a value
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqloom.tools import doctor

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def build_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with --json, the file for the record."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, help="write the record to this file; benchmarks/results/<date>/ keeps them"
    )
    return parser


def time_best(
    call: Callable[[], object], calls: int = 1, rounds: int = 5, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of one call in the fastest of several rounds, after one round to warm up."""
    times = []
    for _ in range(1 + rounds):
        start = clock()
        for _ in range(calls):
            call()
        times.append((clock() - start) / calls)
    return min(times[1:])


def print_row(row: dict[str, Any]) -> None:
    """Print one result as it comes in."""
    print(*(f"{key} {value}" for key, value in row.items()), flush=True)


def describe_run(**more: Any) -> dict[str, Any]:
    """Return the command, the date, the versions and the hardware, which every record has."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT).as_posix() if script.is_relative_to(ROOT) else script.name
    return {
        "command": shlex.join(["python", name, *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": doctor.versions(),
        "hardware": doctor.hardware(),
    } | more


def write_record(file: Path | None, **results: Any) -> None:
    """Write the results and what `describe_run` says of them, if there is a file to write to."""
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(format_record(describe_run(**results)), encoding="utf-8")


def format_record(document: Any) -> str:
    """Return JSON with one line for each entry, and for each element of a long list."""
    if not isinstance(document, dict):
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return "{\n" + ",\n".join(f"{json.dumps(key)}:{_format_entry(value)}" for key, value in document.items()) + "\n}\n"


def _format_entry(value: Any) -> str:
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(line) < 200 or not isinstance(value, list):
        return line
    return "[\n" + ",\n".join(json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in value) + "\n]"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(format_record(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
