"""What every measurement shares: its command line, its clock, and the JSON record of a run."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from seqloom.tools import doctor

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "research" / "results"


def build_parser(about: str | None, *, record: bool = True) -> argparse.ArgumentParser:
    """Return a parser for a command; with `record`, it has --json, the file for the record."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if record:
        parser.add_argument(
            "--json", type=Path, help="write the record to this file; research/results/<date>/ keeps them"
        )
    return parser


def format_command() -> str:
    """Return the command that is running, as a person would type it."""
    return " ".join([sys.argv[0], *([shlex.join(sys.argv[1:])] if sys.argv[1:] else [])])


def start_again() -> list[str]:
    """Return the words that start the running command in another process, without its options."""
    return [sys.executable, *shlex.split(sys.argv[0])[1:]]


def measure(
    call: Callable[[], object], calls: int = 1, device: str = "cpu", clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of one of several calls in a row: by this clock, or by the events of a GPU.

    The clock of this folder. On a GPU it begins when earlier work is done; calls follow each other as in training.
    """
    if device == "cpu":
        start = clock()
        for _ in range(calls):
            call()
        return (clock() - start) / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls


def time_best(
    call: Callable[[], object],
    calls: int = 1,
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    device: str = "cpu",
) -> float:
    """Return the seconds of one call in the fastest of several rounds, after one round to warm up."""
    return min([measure(call, calls, device, clock) for _ in range(1 + rounds)][1:])


def print_row(row: dict[str, Any]) -> None:
    """Print one result as it comes in."""
    print(*(f"{key} {value}" for key, value in row.items()), flush=True)


def describe_run(**more: Any) -> dict[str, Any]:
    """Return the command, the date, the versions and the hardware, which every record has."""
    return {
        "command": format_command(),
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
