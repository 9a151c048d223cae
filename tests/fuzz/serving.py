"""Hostile and ordinary requests to a server at the same time; every answer is checked, and so is the log.

    PYTHONPATH=tests python -m fuzz.serving --hostile 10000 --ordinary 1000 --idle 10000

The hostile ones: text for numbers, bodies over the limit, a million steps, malformed and nested JSON, invalid UTF-8,
NaN, unknown routes and methods, paths as names of runs, other origins and hosts, slow and vanishing clients, tokens of
another run, and connections that send nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECRET = "zanzibar"  # in every hostile request; no log may hold it
JSON = "Content-Type: application/json\r\n"
AT_ONCE = 40  # hostile clients
ORDINARY_AT_ONCE = 4
NO_ANSWER = 0  # the status of a client that leaves, or whose connection is closed


def build(method: str, path: str, body: bytes = b"", headers: str = JSON, host: str = "localhost") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body or method == "POST" else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}{length}Connection: close\r\n\r\n".encode() + body


def predict(body: bytes, headers: str = JSON) -> bytes:
    return build("POST", "/v1/predict", body, headers)


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
            + b"80000\r\n"
            + b" " * 0x80000
            + b"\r\n"
            + (b"80000\r\n" + b" " * 0x80000 + b"\r\n") * 8,
            {413},
        ),
        "a million steps": (predict(b'{"run":"level","rows":[{"level":[' + b"1," * 999_999 + b"1]}]}"), {413}),
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
        "a client that vanishes": (predict(b'{"run":"cups","rows":["%s"]}' % word), {NO_ANSWER}),
        "half a request": (predict(b'{"run":"cups","rows":["%s"]}' % word)[:90], {NO_ANSWER}),
    }


async def send(port: int, name: str, request: bytes) -> int:
    """Send one request and return the status of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        if name in ("a client that vanishes", "half a request"):
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


async def attack(port: int, flags: argparse.Namespace) -> dict[str, object]:
    """Send everything; return counts and the time it took."""
    rng, wrong, statuses = random.Random(flags.seed), [], collections.Counter()
    body = {"run": "cups", "rows": ["mint honey kettle"]}
    _, expected = await ask(port, "/v1/predict", body)
    _, stream = await ask(port, "/v1/stream", {"run": "pulses"})
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    start, left = time.perf_counter(), flags.hostile

    async def be_hostile() -> None:
        nonlocal left
        while left > 0:
            left -= 1
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
                idle.append(await asyncio.open_connection("127.0.0.1", port))
            except OSError as error:
                wrong.append(f"an idle connection: {error}")
            if len(idle) % 100 == 0:
                await asyncio.sleep(0)

    share = flags.ordinary // ORDINARY_AT_ONCE
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
        "hostile": flags.hostile,
        "ordinary": len(latencies),
        "idle": len(idle),
        "seconds": round(seconds, 1),
        "wrong": len(wrong),
        "first_wrong": wrong[:5],
        "statuses": {str(status): n for status, n in sorted(statuses.items())},
        "ordinary_ms": {"p50": _quantile(latencies, 0.5), "p99": _quantile(latencies, 0.99)},
    }


def _quantile(values: list[float], q: float) -> float:
    return round(1000 * sorted(values)[min(len(values) - 1, int(q * len(values)))], 1)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    for name, default in (("hostile", 10_000), ("ordinary", 1000), ("idle", 10_000), ("seed", 0)):
        flags.add_argument(f"--{name}", type=int, default=default)
    given = flags.parse_args()
    _allow_files(given.idle + 500)
    sys.path.insert(0, str(Path(__file__).parents[1] / "lab" / "serve"))
    from small_runs import train_runs

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SEQLOOM_CACHE": f"{folder}/cache", "SEQLOOM_STATE": f"{folder}/state"}
        runs = train_runs(Path(folder))
        log = Path(folder) / "log"
        words = [sys.executable, "-m", "seqloom", "serve", *(str(runs / n) for n in ("cups", "pulses", "level"))]
        with log.open("w") as errors:
            server = subprocess.Popen(
                [*words, "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=errors, text=True
            )
            address = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["address"]
            try:
                record = asyncio.run(attack(int(address.rpartition(":")[2]), given))
            finally:
                server.terminate()
                server.wait(60)
        text = log.read_text()
    record |= {
        "log_lines": text.count("\n"),
        "log_has_user_data": SECRET in text,
        "internal_errors": text.count("internal error"),
        "exit_code": server.returncode,
        "seed": given.seed,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    print(json.dumps(record, indent=1))
    is_fine = not record["wrong"] and not record["log_has_user_data"] and not record["internal_errors"]
    return int(not is_fine or bool(server.returncode))


def _allow_files(count: int) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


if __name__ == "__main__":
    sys.exit(main())
