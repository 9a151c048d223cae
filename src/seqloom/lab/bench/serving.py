"""The load test of `seqloom bench serve`: throughput against the model alone, latency against load, streams."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from seqloom.core.errors import UserError
from seqloom.lab.bench import load
from seqloom.lab.bench.settings import check_plot, split_values

WARM_UP_SECONDS = 1.0
ROUNDS = 4  # rounds in which the model alone and the server are measured; the best counts
MODEL_THREADS = {"OMP_NUM_THREADS": "1"}  # the second core is for the requests

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class ServeBenchSettings(BaseModel):
    """Settings of `seqloom bench serve`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rows: Count = 32
    """Rows per request."""
    length: Count = 100
    """Steps of a row: the example of the run is repeated to this length."""
    load: tuple[Positive, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """Loads to measure, as shares of the highest throughput, separated by commas."""
    seconds: Positive = 5.0
    """Seconds for each measurement."""
    connections: Count = 8
    """Requests at the same time while the highest throughput is measured, and WebSockets of streams."""
    streams: Annotated[int, Field(ge=0)] = 0
    """Streams to run at the same time; 0 measures requests instead."""
    rate: Positive = 50.0
    """Steps per second of each stream."""
    batch: Count = 32
    """Most rows that the server's model reads in one call."""
    wait: Annotated[float, Field(ge=0)] = 2.0
    """Longest time in milliseconds that a row waits for others."""
    seed: int = 0
    """Seed of the times at which requests are sent."""
    plot: Path | None = None
    """Also draw a chart to this file, which must end in .svg, .png or .pdf."""

    _check_plot = field_validator("plot")(check_plot)
    _split_values = field_validator("load", mode="before")(split_values)


@dataclass(frozen=True)
class Level:
    """Latencies of the requests at one load.

    p50, p90 and p99 are the milliseconds within which half, 90 % and 99 % of them were answered.
    """

    load: float  # share of the highest throughput
    per_second: float  # requests per second that were sent
    answered: int  # requests answered with 200
    failed: int  # requests answered otherwise, or not at all
    p50: float
    p90: float
    p99: float


def measure_requests(run: str, settings: ServeBenchSettings, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure the requests of one run on a separate server.

    Args:
        run: Folder of the run, or its name in runs/.
        report: Called with a line when a part is finished.

    Returns:
        Rows per second offline and served, and a list of levels.
    """
    with start_server(run, list_flags(settings)) as (url, name, example):
        rows = [lengthen(example, settings.length)] * settings.rows
        with _start_model(run, rows) as measure_offline:
            body = json.dumps({"run": name, "rows": rows}).encode()
            return asyncio.run(_measure_levels(url, body, measure_offline, settings, report))


async def _measure_levels(
    url: str,
    body: bytes,
    measure_offline: Callable[[float], float],
    settings: ServeBenchSettings,
    report: Callable[[str], None],
) -> dict[str, Any]:
    client = load.Client(url, "/v1/predict", body)
    await load.send_closed(client, settings.connections, WARM_UP_SECONDS)
    best, offline, failed = load.Answers(), 0.0, 0
    statuses: Counter[int] = Counter()
    for _ in range(ROUNDS):  # alternate, so that other programs on the machine slow down both
        offline = max(offline, await asyncio.to_thread(measure_offline, settings.seconds / ROUNDS))
        full = await load.send_closed(client, settings.connections, settings.seconds / ROUNDS)
        best, statuses, failed = max(best, full, key=lambda a: a.per_second), full.statuses, failed + full.failed
    if not best.milliseconds:
        raise UserError(f"the server answered no request; its statuses were {dict(statuses)}")
    served = best.per_second * settings.rows
    report(f"the model alone: {offline:,.0f} rows/s")
    report(f"served: {served:,.0f} rows/s, {served / offline:.0%} of the model alone")
    levels = []
    for share in settings.load:
        rate = share * best.per_second
        answers = await load.send_open(client, rate, settings.seconds, settings.seed)
        p50, p90, p99 = (round(answers.find_quantile(q), 3) for q in (0.5, 0.9, 0.99))
        level = Level(share, round(rate, 2), len(answers.milliseconds), answers.failed, p50, p90, p99)
        report(f"load {share:.0%}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {level.failed} failed")
        levels.append(level)
    client.close()
    return {
        "offline_rows_per_second": round(offline, 1),
        "served_rows_per_second": round(served, 1),
        "ratio": round(served / offline, 3),
        "failed": failed,
        "levels": [asdict(level) for level in levels],
    }


def measure_streams(run: str, settings: ServeBenchSettings, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure streams of one run on a separate server; arguments as in `measure_requests`.

    Returns:
        How many steps were late or failed, and the times to their results.
    """
    with start_server(run, list_flags(settings)) as (url, name, _):
        step = _find_run(url)["step_example"]
        if step is None:
            raise UserError(f"{run} has no streams; its model needs the whole row")
        arguments = (url, name, step, settings.streams, min(settings.connections, settings.streams), settings.rate)
        done = asyncio.run(load.send_steps(*arguments, settings.seconds))
    quantiles = {
        f"p{round(100 * q, 1):g}": round(load.find_quantile(done.milliseconds, q), 3) for q in (0.5, 0.99, 0.999)
    }
    facts = {"steps": len(done.milliseconds), "late": done.late, "failed": done.failed, **quantiles}
    report(f"{settings.streams:,} streams: {done.late} of {facts['steps']:,} steps late, p99 {quantiles['p99']:.1f} ms")
    return {"streams": settings.streams, "connections": arguments[4], "rate": settings.rate, **facts}


def describe_machine() -> dict[str, Any]:
    """Return the conditions of the measurement."""
    import torch

    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def tabulate(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the levels as rows of a table."""
    return [
        {
            "load": f"{level['load']:.0%}",
            "requests/s": f"{level['per_second']:,.0f}",
            "answered": level["answered"],
            "failed": level["failed"],
            "p50 ms": f"{level['p50']:.2f}",
            "p90 ms": f"{level['p90']:.2f}",
            "p99 ms": f"{level['p99']:.2f}",
            "p99 / p50": f"{level['p99'] / level['p50']:.2f}",
        }
        for level in document["levels"]
    ]


def lengthen(example: Any, length: int) -> Any:  # noqa: ANN401  # a row
    """Repeat the lists and texts of an example row to a number of steps."""
    if isinstance(example, dict):
        return {name: lengthen(value, length) for name, value in example.items()}
    if isinstance(example, list) and example:
        return (example * -(-length // len(example)))[:length]
    if isinstance(example, str) and example.split():
        words = example.split()
        return " ".join((words * -(-length // len(words)))[:length])
    return example


@contextmanager
def _start_model(run: str, rows: list[Any]) -> Iterator[Callable[[float], float]]:
    """Load a run in another process; yield a function that measures its rows per second for some seconds."""
    words = [sys.executable, "-P", "-m", "seqloom.lab.bench.offline", run]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **MODEL_THREADS}
    ) as process:
        asked, answered = process.stdin, process.stdout
        assert asked is not None and answered is not None
        asked.write(json.dumps(rows) + "\n")

        def measure(seconds: float) -> float:
            asked.write(f"{seconds}\n")
            asked.flush()
            return float(answered.readline() or "nan")

        yield measure
        asked.close()


def _find_run(url: str) -> dict[str, Any]:
    from urllib.request import urlopen

    with urlopen(f"{url}/v1/runs") as answer:  # the server that this process started
        found: dict[str, Any] = json.load(answer)["runs"][0]
    return found


def list_flags(settings: ServeBenchSettings) -> list[str]:
    """Return flags of a server whose limits do not limit the measurement."""
    limits = ["--max-body", str(2**26), "--max-streams", str(max(1, settings.streams)), "--max-rows", "100000"]
    limits += ["--max-receiving", str(2**30), "--max-requests", "100000", "--client-share", "1"]
    return [*limits, "--batch", str(settings.batch), "--wait", str(settings.wait)]


@contextmanager
def start_server(run: str, flags: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Serve a run in another process; yield its address, the name of the run and an example row."""
    words = [sys.executable, "-P", "-m", "seqloom", "serve", run, "--port", "0", "--quiet", "--json", *flags]
    # a pipe that nobody reads would fill, and stop the server
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **MODEL_THREADS}
        ) as process,
    ):
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line == "}\n":
                    break
            if not lines:
                process.wait()
                errors.seek(0)
                raise UserError(errors.read().strip().removeprefix("seqloom: ") or "the server did not start")
            url = json.loads("".join(lines))["address"]
            found = _find_run(url)
            yield url, found["name"], found["example"]
        finally:
            process.terminate()
