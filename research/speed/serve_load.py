"""How much hostile clients delay ordinary requests to `seqloom serve`.

    python -m research serve_load --minutes 10 --json FILE

Finds the highest throughput of a small run's server with default limits, then sends ordinary requests from 18 clients
at 70 % of it (a Poisson process), in phases without and with two hostile clients (one client in ten), in turns. These
do at the same time: hold 256 half-sent bodies, send 1,000 long rows again and again, leave while their rows are
computed, and send noise. Each client has a loopback address of its own, which only Linux has without being set up. The
hostile clients run in another process, of low priority, so that their own work delays neither the server nor the
measurement: elsewhere they have machines of their own. Each phase records how much CPU time the host of a virtual
machine gave to others: at 70 % load, a machine that becomes slower for some seconds is full.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import seqloom
from research import record
from seqloom.lab.bench import load
from seqloom.lab.bench.serving import lengthen, start_server

ORDINARY = [f"127.0.1.{n}" for n in range(1, 19)]
HOSTILE = ["127.0.2.1", "127.0.2.2"]
LOAD = 0.7
TARGET = 1.5  # times the p99 without hostile clients
HALF_SENT = 128  # bodies of each hostile client
LONG_ROWS, LONG_STEPS = 1000, 400
PAUSE = 0.05  # seconds between the requests of one that leaves, or sends noise
CAPACITY_SECONDS = 8.0
WORDS = ["kettle", "teapot", "saucer", "spoon", "honey", "lemon", "ginger", "mint"]


def train(folder):
    """Train a small classifier of texts and return the folder of its run."""
    rng = random.Random(0)
    lines = ["order,drink"]
    lines += [
        f"{' '.join(rng.choices(WORDS, k=rng.randint(3, 40)))},{rng.choice(('tea', 'infusion'))}" for _ in range(200)
    ]
    (folder / "cups.csv").write_text("\n".join(lines))
    run = seqloom.train(folder / "cups.csv", out=folder / "cups", steps=2, hidden=64, layers=1, device="cpu")
    return run.folder


def build(body, length=None):
    """Return a request to predict."""
    head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {length or len(body)}\r\n\r\n".encode() + body


async def be_hostile(port, seconds, rows):
    """Send what a hostile client sends for some seconds, and return the statuses of the answers."""
    statuses, watch = Counter(), record.Stopwatch()
    large = build(json.dumps({"rows": rows}).encode())

    async def send(address, request, wait):
        """Send a request; wait for its answer, or leave after some seconds."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            writer.write(request)
            try:
                async with asyncio.timeout(min(wait, max(0.0, seconds - watch.seconds))):
                    statuses[(await reader.readline()).decode()[9:12]] += 1
                    await reader.read()
            except TimeoutError:
                statuses["left"] += 1
            writer.transport.abort()
        except OSError:
            statuses["closed"] += 1

    async def repeat(address, make_request, wait, pause):
        while watch.seconds < seconds:
            await send(address, make_request(), wait)
            await asyncio.sleep(pause)

    works = []
    for n, address in enumerate(HOSTILE):
        noise = random.Random(n)
        half = build(b"{" * 50, 100)
        works += [repeat(address, lambda half=half: half, 60.0, PAUSE) for _ in range(HALF_SENT)]
        works += [repeat(address, lambda: large, 60.0, 0.0)]
        works += [repeat(address, lambda: large, 0.1, PAUSE)]
        works += [repeat(address, lambda noise=noise: noise.randbytes(200) + b"\r\n\r\n", 1.0, PAUSE)]
    await asyncio.gather(*works)
    return statuses


def read_stolen():
    """Return the seconds of CPU time that this virtual machine wanted and did not get since it started."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


class Crowd:
    """Ordinary clients, one of which sends the next request."""

    def __init__(self, url, body, seed):
        self._clients = [load.Client(url, "/v1/predict", body, address=address) for address in ORDINARY]
        self._rng = random.Random(seed)

    async def send(self):
        return await self._rng.choice(self._clients).send()

    def close(self):
        for client in self._clients:
            client.close()


def summarize(answers):
    """Return counts and quantiles of the answers of some phases."""
    times = [ms for one in answers for ms in one.milliseconds]
    statuses = sum((one.statuses for one in answers), Counter())
    quantiles = {f"p{100 * q:g}": round(load.find_quantile(times, q), 2) for q in (0.5, 0.99)}
    return {"requests": statuses.total(), "statuses": {str(s): n for s, n in sorted(statuses.items())}, **quantiles}


async def measure(url, body, rows, given):
    """Find the capacity, then send ordinary requests in phases; return both, by whether hostile clients were there."""
    crowd = Crowd(url, body, given.seed)
    await load.send_closed(crowd, 8, 2.0)
    capacity = (await load.send_closed(crowd, 8, CAPACITY_SECONDS)).per_second
    record.print_row({"capacity": f"{capacity:.0f} requests/s"})
    count = max(1, round(given.minutes * 60 / given.phase / 2))
    answers, stolen = {False: [], True: []}, {False: [], True: []}
    hostile = Counter()
    for n in range(2 * count):
        is_attacked = n % 2 == 1
        process = None
        if is_attacked:
            words = [*record.start_again(), "--attack", url, "--phase", str(given.phase)]
            process = await asyncio.create_subprocess_exec(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            process.stdin.write(json.dumps(rows).encode() + b"\n")
            await process.stdin.drain()
            await process.stdout.readline()  # it has begun
        before = read_stolen()
        one = await load.send_open(crowd, LOAD * capacity, given.phase, given.seed + n)
        answers[is_attacked].append(one)
        stolen[is_attacked].append(round(read_stolen() - before, 2))
        if process is not None:
            hostile += Counter(json.loads((await process.communicate())[0]))
        record.print_row({"phase": n, "hostile": is_attacked, **summarize([one]), "stolen_s": stolen[is_attacked][-1]})
    crowd.close()
    return capacity, answers, stolen, hostile


def attack(given):
    """Be the hostile clients of one phase; the rows come from the standard input."""
    os.nice(19)
    rows = json.loads(sys.stdin.readline())
    print("begun", flush=True)
    print(json.dumps(asyncio.run(be_hostile(urlsplit(given.attack).port, given.phase, rows))))


def main():
    flags = record.build_parser(__doc__)
    flags.add_argument("--minutes", type=float, default=10.0, help="of all phases together")
    flags.add_argument("--phase", type=float, default=30.0, help="seconds of a phase")
    flags.add_argument("--rows", type=int, default=8, help="rows of an ordinary request")
    flags.add_argument("--length", type=int, default=50, help="words of an ordinary row")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument(
        "--attack", metavar="URL", help="only be the hostile clients; the script starts itself with this"
    )
    given = flags.parse_args()
    if given.attack:
        attack(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SEQLOOM_CACHE": f"{folder}/cache", "SEQLOOM_STATE": f"{folder}/state"}
        run = train(Path(folder))
        with start_server(str(run), []) as (url, _, example):
            body = json.dumps({"rows": [lengthen(example, given.length)] * given.rows}).encode()
            rows = [lengthen(example, LONG_STEPS)] * LONG_ROWS
            capacity, answers, stolen, hostile = asyncio.run(measure(url, body, rows, given))
    quiet, attacked = summarize(answers[False]), summarize(answers[True])
    ratios = {name: round(attacked[name] / quiet[name], 2) for name in ("p50", "p99")}
    phases = {
        name: [summarize([one])["p99"] for one in answers[key]] for name, key in (("without", False), ("with", True))
    }
    ratios["median p99 of a phase"] = round(median(phases["with"]) / median(phases["without"]), 2)
    record.print_row({"without": quiet, "with": attacked, "ratio": ratios, "target": TARGET})
    results = {"capacity": round(capacity, 1), "load": LOAD, "without": quiet, "with": attacked, "ratio": ratios}
    results["p99 of each phase"] = phases
    results["stolen seconds of each phase"] = {"without": stolen[False], "with": stolen[True]}
    record.write_record(given.json, **results, hostile=hostile, load_average=round(os.getloadavg()[0], 1))
