"""Send requests to a server at a given rate, and measure how long the answers take.

An open loop sends each request on schedule, whether or not earlier ones have been answered, and measures latency from
the scheduled time, so that a stalled server is charged for all requests that had to wait. A closed loop sends the next
request when the previous one has been answered, and measures the maximum throughput.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

SEND_TIME_LIMIT = 60.0  # seconds; a request without an answer by then has failed
MOST_CONNECTIONS = 1000  # connections of an open loop; if all are in use, a request waits, and the wait counts


@dataclass
class Answers:
    """The answers to some requests."""

    milliseconds: list[float] = field(default_factory=list)  # the time to each answer with status 200
    statuses: Counter[int] = field(default_factory=Counter)  # how many answers had each status; 0 for no answer
    seconds: float = 0.0  # how long the requests lasted

    @property
    def per_second(self) -> float:
        return len(self.milliseconds) / self.seconds if self.seconds else 0.0

    @property
    def failed(self) -> int:
        return sum(n for status, n in self.statuses.items() if status != 200)

    def find_quantile(self, q: float) -> float:
        """Return the time in milliseconds within which a share q of the requests was answered."""
        return find_quantile(self.milliseconds, q)


def find_quantile(values: list[float], q: float) -> float:
    """Return a quantile of values, NaN if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


class Client:
    """Send one request again and again over connections that stay open.

    Args:
        address: Address of this machine to send from; by default the system chooses one.
    """

    def __init__(self, url: str, path: str, body: bytes, address: str | None = None) -> None:
        self._from = None if address is None else (address, 0)
        place = urlsplit(url)
        self._host, self._port = place.hostname or "localhost", place.port or 80
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {place.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        self._request = "\r\n".join([*lines, "", ""]).encode() + body
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._limit = asyncio.Semaphore(MOST_CONNECTIONS)

    async def send(self) -> int:
        """Send the request and return the status of the answer; 0 if there is none."""
        try:
            async with asyncio.timeout(SEND_TIME_LIMIT), self._limit:
                while self._free:
                    try:
                        return await self._exchange(*self._free.pop())
                    except (ConnectionError, asyncio.IncompleteReadError):
                        continue  # the server has closed it meanwhile
                return await self._exchange(*await self._connect())
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            return 0

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """Send the request over a connection, and return the status of the answer."""
        try:
            writer.write(self._request)
            status, stays_open = await read_answer(reader)
        except BaseException:
            writer.close()
            raise
        if stays_open:
            self._free.append((reader, writer))
        else:
            writer.close()
        return status

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, local_addr=self._from)

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()
        self._free.clear()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Read an answer with a length, and return its status and whether the connection stays open."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    fields = dict(line.split(b":", 1) for line in lines[1:] if b":" in line)
    await reader.readexactly(int(fields.get(b"content-length", b"0")))
    return int(lines[0].split()[1]), fields.get(b"connection", b"").strip() != b"close"


async def send_closed(client: Client, connections: int, seconds: float) -> Answers:
    """Keep some connections busy for a while.

    Args:
        connections: Requests at the same time.
    """
    answers, start = Answers(), time.perf_counter()

    async def work() -> None:
        while time.perf_counter() - start < seconds:
            await _time(client, answers, time.perf_counter())

    await asyncio.gather(*(work() for _ in range(connections)))
    answers.seconds = time.perf_counter() - start
    return answers


async def send_open(client: Client, rate: float, seconds: float, seed: int = 0) -> Answers:
    """Send requests at random times (a Poisson process) and wait for all answers.

    Args:
        rate: Mean requests per second.
    """
    answers, rng, tasks = Answers(), random.Random(seed), set()
    start = time.perf_counter()
    due = start + rng.expovariate(rate)
    while due < start + seconds:
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(_time(client, answers, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += rng.expovariate(rate)
    await asyncio.gather(*tasks)
    answers.seconds = seconds
    return answers


async def _time(client: Client, answers: Answers, due: float) -> None:
    status = await client.send()
    answers.statuses[status] += 1
    if status == 200:
        answers.milliseconds.append(1000 * (time.perf_counter() - due))


@dataclass
class StreamSteps:
    """Results of the steps of streams."""

    milliseconds: list[float] = field(default_factory=list)  # from the time at which a step was due to its result
    late: int = 0  # steps whose result came after the next step was due
    failed: int = 0  # steps without a result


async def send_steps(
    url: str,
    run: str,
    step: Any,  # noqa: ANN401  # any JSON
    streams: int,
    connections: int,
    rate: float,
    seconds: float,
) -> StreamSteps:
    """Run streams over WebSockets, each with a fixed number of steps per second.

    Args:
        connections: Number of WebSockets; the streams of one share a message.
        rate: Steps per second of each stream.
    """
    done = StreamSteps()
    shares = [streams // connections + (n < streams % connections) for n in range(connections)]
    begin = asyncio.Event()
    ready = asyncio.Semaphore(0)
    tasks = [
        asyncio.create_task(_run_streams(url, run, step, share, (n / connections, rate, seconds), (begin, ready), done))
        for n, share in enumerate(shares)
        if share
    ]
    for _ in tasks:
        await ready.acquire()
    begin.set()
    await asyncio.gather(*tasks)
    return done


async def _run_streams(
    url: str,
    run: str,
    step: Any,  # noqa: ANN401  # any JSON
    share: int,
    pace: tuple[float, float, float],
    signals: tuple[asyncio.Event, asyncio.Semaphore],
    done: StreamSteps,
) -> None:
    """Run the streams of one WebSocket."""
    from pydantic_core import from_json, to_json
    from websockets.asyncio.client import connect

    phase, rate, seconds = pace
    begin, ready = signals
    place = "ws" + url.removeprefix("http") + "/v1/stream"
    async with connect(place, max_size=None, compression=None) as socket:
        tokens = []
        for _ in range(share):
            await socket.send(to_json({"do": "start", "run": run}).decode())
            tokens.append(from_json(await socket.recv())["token"])
        one = {"do": "step", "token": tokens[0], "x": step}
        message = to_json(one if share == 1 else {"do": "steps", "x": [[t, step] for t in tokens]}).decode()
        ready.release()
        await begin.wait()
        start = time.perf_counter() + phase / rate  # connections send at different moments
        for n in range(int(rate * seconds)):
            due = start + n / rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            await socket.send(message)
            answer = from_json(await socket.recv())
            took = time.perf_counter() - due
            results = answer.get("results", [answer])
            done.failed += sum("error" in result for result in results)
            done.milliseconds += [1000 * took] * len(results)
            done.late += len(results) * (took > 1 / rate)
        for t in tokens:
            await socket.send(to_json({"do": "stop", "token": t}).decode())
            await socket.recv()
