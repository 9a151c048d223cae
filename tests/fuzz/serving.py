"""Hostile and ordinary requests to a server at the same time; every answer is checked, and so is the log.

    PYTHONPATH=tests python -m fuzz.serving --hostile 100000 --ordinary 10000 --idle 10000 --json FILE

The hostile ones: text for numbers, bodies over the limit, a million steps, malformed and nested JSON, invalid UTF-8,
NaN, unknown routes and methods, paths as names of runs, other origins and hosts, slow and vanishing clients, tokens of
another run, connections that send nothing, and bodies of which half arrives. Only loopback addresses are used.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import math
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqloom.tools import doctor

SECRET = "zanzibar"  # in every hostile request; no log may hold it
JSON = "Content-Type: application/json\r\n"
AT_ONCE = 40  # hostile clients
ORDINARY_AT_ONCE = 4
HALF_SENT = 256  # bodies of which half has arrived, all the time
HOSTILE_ADDRESS, IDLE_ADDRESS = ("127.0.0.2", "127.0.0.3") if sys.platform == "linux" else (None, None)
WARM_UP = 0.3  # share of the requests after which the memory of the server should not grow
MOST_GROWTH = 100  # MiB
VANISHING = ("a client that vanishes", "half a request", "a client that vanishes as it waits")
NO_ANSWER = 0  # the status of a client that leaves, or whose connection is closed


RAW = b"%s /v1/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n"  # with a method and headers


def build(method: str, path: str, body: bytes = b"", headers: str = JSON, host: str = "localhost") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body or method == "POST" else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}{length}Connection: close\r\n\r\n".encode() + body


def predict(body: bytes, headers: str = JSON) -> bytes:
    return build("POST", "/v1/predict", body, headers)


CHUNKS = (b"80000\r\n" + b" " * 0x80000 + b"\r\n") * 9
MILLION_STEPS = predict(b'{"run":"level","rows":[{"level":[' + b"1," * 999_999 + b"1]}]}")


def list_attacks(rng: random.Random, token: str) -> dict[str, tuple[bytes, set[int]]]:
    """Return requests by name with the statuses that are right."""
    noise = rng.randbytes(rng.randint(1, 200))
    deep = b"[" * rng.randint(300, 60_000)
    word = SECRET.encode()
    return {
        "text for numbers": (predict(b'{"run":"pulses","rows":[{"pulse":["%s"],"flow":[1]}]}' % word), {422}),
        "numbers for text": (predict(b'{"run":"cups","rows":[{"order":%d}]}' % rng.randint(0, 99)), {422}),
        "body over the limit": (
            f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: {10**9}\r\n\r\n".encode() + word,
            {413},
        ),
        "large chunks": (
            f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n".encode()
            + CHUNKS,
            {413, 429},  # 429: several at a time
        ),
        "a million steps": (MILLION_STEPS, {413}),
        "malformed JSON": (predict(b'{"run":"cups","rows":["%s"' % word), {400}),
        "nested JSON": (predict(b'{"run":"cups","rows":' + deep), {400}),
        "nested rows": (predict(b'{"run":"cups","rows":[' + b"[" * 50 + b"]" * 50 + b"]}"), {422}),
        "not UTF-8": (predict(b'{"run":"cups","rows":["%s\xff"]}' % word), {400}),
        "NaN": (predict(b'{"run":"pulses","rows":[{"pulse":[NaN],"flow":[1]}]}'), {400}),
        "infinity": (predict(b'{"run":"pulses","rows":[{"pulse":[1e999],"flow":[1]}]}'), {422}),
        "noise as a body": (predict(noise), {400, 422}),
        "noise as a request": (noise + b"\r\n\r\n", {400, NO_ANSWER}),
        "unknown route": (build("GET", f"/{SECRET}"), {404}),
        "unknown method": (build("DELETE", "/v1/predict"), {405}),
        "a path as a run": (predict(b'{"run":"../../../etc/%s","rows":[]}' % word), {404}),
        "a path in the route": (build("GET", f"/v1/runs/..%2f..%2f{SECRET}"), {404}),
        "another origin": (predict(b'{"run":"cups","rows":[]}', JSON + "Origin: http://evil.example\r\n"), {403}),
        "another host": (build("GET", "/v1/runs", host="evil.example"), {403}),
        "not declared as JSON": (predict(b'{"run":"cups","rows":[]}', "Content-Type: text/plain\r\n"), {415}),
        "a token of another run": (
            build("POST", f"/v1/stream/{token}/steps", b'{"run":"cups","steps":["%s"]}' % word),
            {403},
        ),
        "an unknown token": (build("POST", f"/v1/stream/{SECRET}/steps", b'{"steps":[1]}'), {404}),
        "too many rows": (predict(b'{"run":"cups","rows":[' + b"0," * 5000 + b"0]}"), {413, 422}),
        "a negative length": (RAW % (b"POST", b"Content-Length: -1\r\n") + word, {400}),
        "two lengths": (RAW % (b"POST", b"Content-Length: 2\r\nContent-Length: 3\r\n") + b"{}", {400}),
        "a length and chunks": (
            RAW % (b"POST", b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
            {400, 415},
        ),
        "a wrong size of a chunk": (RAW % (b"POST", b"Transfer-Encoding: chunked\r\n") + b"-5\r\n\r\n", {400, 415}),
        "a client that vanishes as it waits": (
            predict(b'{"run":"cups","rows":[' + b",".join([b'"mint honey %s"' % word] * 1000) + b"]}"),
            {NO_ANSWER},
        ),
        "a client that vanishes": (predict(b'{"run":"cups","rows":["%s"]}' % word), {NO_ANSWER}),
        "half a request": (predict(b'{"run":"cups","rows":["%s"]}' % word)[:90], {NO_ANSWER}),
    }


async def connect(port: int, address: str | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection from an address of this machine."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0) if address else None)


async def send(port: int, name: str, request: bytes) -> int:
    """Send one request and return the status of its answer."""
    reader, writer = await connect(port, HOSTILE_ADDRESS)
    try:
        writer.write(request)
        if name in VANISHING:
            await asyncio.sleep(0.01 if "waits" in name else 0)
            writer.transport.abort()
            return NO_ANSWER
        line = await asyncio.wait_for(reader.readline(), 60)
        if line.startswith(b"HTTP/1.1 "):
            await reader.read(100_000)
            return int(line.split()[1])
        return NO_ANSWER
    except ConnectionError:
        return NO_ANSWER
    finally:
        writer.close()


async def ask(port: int, path: str, body: object) -> tuple[int, dict[str, object]]:
    """Send an ordinary request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(build("POST", path, json.dumps(body).encode()))
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


@contextmanager
def hold_half_sent(port: int, head: bytes) -> Iterator[None]:
    """Keep connections open that have sent half of a body; one that the server closes is replaced."""

    async def hold() -> None:
        while True:
            try:
                reader, writer = await connect(port, HOSTILE_ADDRESS)
                writer.write(head)
                await reader.read()
                writer.close()
            except OSError:
                pass
            await asyncio.sleep(0.1)

    tasks = [asyncio.ensure_future(hold()) for _ in range(HALF_SENT)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def read_memory(process: int) -> float:
    """Return the resident memory of a process in MiB; NaN where the system does not tell."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return math.nan
    return round(int(text.partition("VmRSS:")[2].split()[0]) / 1024, 1)


async def attack(port: int, process: int, flags: argparse.Namespace) -> dict[str, object]:
    """Send everything; return counts and the time it took."""
    rng, wrong, statuses = random.Random(flags.seed), [], collections.Counter()
    body = {"run": "cups", "rows": ["mint honey kettle"]}
    _, expected = await ask(port, "/v1/predict", body)
    _, stream = await ask(port, "/v1/stream", {"run": "pulses"})
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    start, left, memory = time.perf_counter(), flags.hostile, math.nan

    async def be_hostile() -> None:
        nonlocal left, memory
        while left > 0 and time.perf_counter() - start < flags.seconds:
            left -= 1
            if left == int((1 - WARM_UP) * flags.hostile):
                memory = read_memory(process)
            attacks = list_attacks(rng, str(stream["token"]))
            name = rng.choice(list(attacks))
            request, right = attacks[name]
            status = await send(port, name, request)
            statuses[status] += 1
            if status not in right:
                wrong.append(f"{name}: {status}")

    latencies: list[float] = []

    async def be_ordinary(count: int) -> None:
        for _ in range(count):
            began = time.perf_counter()
            status, answer = await ask(port, "/v1/predict", body)
            latencies.append(time.perf_counter() - began)
            if (status, answer) != (200, expected):
                wrong.append(f"an ordinary request: {status}")

    async def be_idle() -> None:
        for _ in range(flags.idle):
            try:
                idle.append(await connect(port, IDLE_ADDRESS))
            except OSError as error:
                wrong.append(f"an idle connection: {error}")
            if len(idle) % 100 == 0:
                await asyncio.sleep(0)

    share = flags.ordinary // ORDINARY_AT_ONCE
    half = build("POST", "/v1/predict", b"x" * 100)[:-50]
    with hold_half_sent(port, half):
        await asyncio.gather(
            *(be_hostile() for _ in range(AT_ONCE)), *(be_ordinary(share) for _ in range(ORDINARY_AT_ONCE)), be_idle()
        )
    seconds = time.perf_counter() - start
    for _, writer in idle:
        writer.transport.abort()
    status, answer = await ask(port, "/v1/predict", body)
    if (status, answer) != (200, expected):
        wrong.append(f"the last request: {status}")
    return {
        "hostile": sum(statuses.values()),
        "half_sent": HALF_SENT,
        "ordinary": len(latencies),
        "idle": len(idle),
        "seconds": round(seconds, 1),
        "wrong": len(wrong),
        "first_wrong": wrong[:5],
        "statuses": {str(status): n for status, n in sorted(statuses.items())},
        "memory_mib": {"after_warm_up": memory, "at_the_end": read_memory(process)},
        "ordinary_ms": {"p50": _quantile(latencies, 0.5), "p99": _quantile(latencies, 0.99)},
    }


def _quantile(values: list[float], q: float) -> float:
    return round(1000 * sorted(values)[min(len(values) - 1, int(q * len(values)))], 1)


def main() -> int:
    flags = build_parser(__doc__)
    for name, default in (("hostile", 10_000), ("ordinary", 1000), ("idle", 10_000)):
        flags.add_argument(f"--{name}", type=int, default=default)
    given = flags.parse_args()
    _allow_files(given.idle + HALF_SENT + 500)
    with train() as runs:
        words = ["serve", *(str(runs / name) for name in ("cups", "pulses", "level"))]
        with start(words, runs.parent / "log") as (server, address):
            record = asyncio.run(attack(int(address.rpartition(":")[2]), server.pid, given))
        text = (runs.parent / "log").read_text()
    record |= {
        "log_lines": text.count("\n"),
        "log_has_user_data": SECRET in text,
        "clients_that_left": text.count('"status": 499'),
    }
    return finish(record, text, server.returncode, given)


def build_parser(about: str | None) -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--seconds", type=float, default=math.inf, help="send no hostile request after this time")
    flags.add_argument("--json", type=Path, help="write the record to this file")
    return flags


@contextmanager
def train() -> Iterator[Path]:
    """Train small runs in a temporary folder; yields the folder of the runs."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "lab" / "serve"))
    from small_runs import train_runs

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SEQLOOM_CACHE": f"{folder}/cache", "SEQLOOM_STATE": f"{folder}/state"}
        yield train_runs(Path(folder))


@contextmanager
def start(words: list[str], log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server in another process; yields the process and its address."""
    command = [sys.executable, "-m", "seqloom", *words, "--port", "0", "--json", "--idle", "3600"]
    with log.open("w") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert server.stdout is not None
        try:
            yield server, json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["address"]
        finally:
            server.terminate()
            server.wait(60)


def finish(record: dict[str, Any], log: str, exit_code: int, given: argparse.Namespace) -> int:
    """Print the record of a search, write it to a file if there is one, and return the exit code of the search."""
    memory = record["memory_mib"]
    record |= {
        "internal_errors": log.count("internal error"),
        "tracebacks": log.count("Traceback"),
        "exit_code": exit_code,
        "command": shlex.join(["python", "-m", f"fuzz.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "seed": given.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 1),
        "versions": doctor.versions(),
        "hardware": doctor.hardware(),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(text + "\n")
    wrong = ("wrong", "internal_errors", "tracebacks", "exit_code", "log_has_user_data")
    grows = memory["at_the_end"] - memory["after_warm_up"] > MOST_GROWTH
    return int(any(record.get(name) for name in wrong) or grows)


def _allow_files(count: int) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


if __name__ == "__main__":
    sys.exit(main())
