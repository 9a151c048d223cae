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
from torch import Tensor

from seqloom.tools import doctor

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "research" / "results"
WALL, PROCESSOR, THREAD = time.perf_counter, time.process_time, time.thread_time  # clocks of a Stopwatch


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


class Stopwatch:
    """The clock of this folder: the seconds since it was made.

    Args:
        clock: WALL, PROCESSOR (of all threads of this process) or THREAD.
    """

    def __init__(self, clock: Callable[[], float] = WALL) -> None:
        self._clock = clock
        self._began = clock()

    @property
    def seconds(self) -> float:
        return self._clock() - self._began


def measure(
    call: Callable[[], object], calls: int = 1, device: str = "cpu", clock: Callable[[], float] = WALL
) -> float:
    """Return the seconds of one of several calls in a row: by this clock, or by the events of a GPU.

    On a GPU it begins when earlier work is done; calls follow each other as in training.
    """
    if device == "cpu":
        watch = Stopwatch(clock)
        for _ in range(calls):
            call()
        return watch.seconds / calls
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
    clock: Callable[[], float] = WALL,
    device: str = "cpu",
) -> float:
    """Return the seconds of one call in the fastest of several rounds, after one round to warm up."""
    return min([measure(call, calls, device, clock) for _ in range(1 + rounds)][1:])


def take_plain_step(
    loss: Tensor, optimiser: torch.optim.Optimizer, clip: float = 0.0, scaler: torch.amp.GradScaler | None = None
) -> None:
    """Take a step of training as a person would write it, for measurements; trainings use lab/training/update.py.

    Args:
        loss: What to minimise.
        optimiser: The optimiser of the weights.
        clip: The largest norm of the gradient; 0 to change nothing.
        scaler: The scale of losses in float16.
    """
    scaler = torch.amp.GradScaler(enabled=False) if scaler is None else scaler
    optimiser.zero_grad()
    scaler.scale(loss).backward()
    if clip:
        torch.nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], clip)
    scaler.step(optimiser)
    scaler.update()


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
