"""Hostile questions to an explorer; every answer is checked, and so is the terminal.

    PYTHONPATH=tests python -m fuzz.exploring --questions 10000 --json FILE

Some have one wrong value in a right question, others are random JSON, noise, or wrong as HTTP: odd headers, negative
lengths, chunks, bodies of which half arrives, paths that leave the folder, missing and wrong tokens. A right question
is asked in between, and must be answered. Only loopback addresses are used.
"""

from __future__ import annotations

import asyncio
import collections
import json
import math
import random
import sys
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fuzz.serving import HOSTILE_ADDRESS, NO_ANSWER, WARM_UP, build_parser, connect, finish, read_memory, start, train

AT_ONCE = 8
REFUSED = {400, 401, 403, 404, 405, 408, 413, 415, 422}
RIGHT_EVERY = 50  # hostile questions
PATHS = (
    "/..%2f..%2fserver.py",
    "/../service.py",
    "/static/app.js",
    "//etc/passwd",
    "/api/",
    "/api/about/",
    "/%00",
    "/a" * 500,
)
NUMBERS = (-1, 0, 1, 3, 10**9, 2**31, 2**63, 10**30, -(10**400), 10**400, 0.5, -0.0, 1e308, 1e-320)
TEXTS = (
    "",
    " ",
    "mint honey",
    "\x00",
    "\u202e",
    "{",
    "[[[" * 400,
    '{"pulse": [1, NaN], "flow": [1, 2]}',
    "[1e999]",
    "x" * 3000,
)


def make_value(rng: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [make_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {
            rng.choice(("run", "row", "units", "", "a" * 50)): make_value(rng, depth + 1)
            for _ in range(rng.randrange(4))
        }
    return rng.choice((None, True, False, rng.choice(NUMBERS), rng.choice(TEXTS), rng.randbytes(4).hex()))


def make_question(rng: random.Random, runs: list[str]) -> tuple[str, dict[str, Any]]:
    """Return a question that is right but for up to two of its values."""
    name = rng.choice(("about", "rows", "explain", "explain", "similar", "curves"))
    question: dict[str, Any] = {} if name == "about" else {"run": rng.choice(runs)}
    places: list[dict[str, Any]] = [question]  # whose values may be changed
    if name in ("explain", "similar"):
        question |= rng.choice(({"row": rng.randrange(8)}, {"input": "mint honey lemon"}))
        clamp = {"layer": "layer.l0", "letter": "h", "value": 0.5, "units": [0, 1], "steps": [0, 1]}
        question |= rng.choice(({}, {"output": rng.randrange(3)}, {"step": 0}, {"uniform_attention": True}))
        if rng.random() < 0.3:
            question["clamps"] = [clamp]
            places.append(clamp)
        if name == "similar":
            question |= {"span": [0, rng.randrange(3)], "units": rng.choice(([], [0, 1]))}
    for _ in range(rng.randrange(3)):
        place = rng.choice(places)
        place[rng.choice((*place, "zanzibar"))] = make_value(rng)
    return name, question


def make_request(rng: random.Random, runs: list[str], token: str) -> tuple[bytes, set[int], bool]:
    """Return a request, the statuses that are right, and whether its client leaves without the answer."""
    name, question = make_question(rng, runs)
    body = json.dumps(question).encode()
    path, method, allowed = f"/api/{name}", "POST", {200} | REFUSED
    headers = {"Host": "localhost", "Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    length: str | None = str(len(body))
    kind = rng.randrange(20)
    if kind == 0:
        body = rng.randbytes(rng.randrange(300))
        length = str(len(body))
    elif kind == 1:
        body = json.dumps(make_value(rng)).encode()
        length = str(len(body))
    elif kind == 2:
        headers["Authorization"] = rng.choice(("", "Bearer", "Bearer x", f"Basic {token}", f"Bearer {token}x"))
        allowed = {401}
    elif kind == 3:
        headers["Cookie"] = rng.choice(("seqloom=1", "=;=;;", "a" * 5000, "\xff"))
    elif kind == 4:
        headers |= rng.choice(
            ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"})
        )
        allowed = {403}
    elif kind == 5:
        length = rng.choice(("-1", "x", "1e3", "0x10", "99999999999999999999", "+5"))
        allowed = REFUSED
    elif kind == 6:
        path, method, length, body = rng.choice(PATHS), rng.choice(("GET", "POST", "PUT", "HEAD", "OPTIONS")), "0", b""
        allowed = REFUSED
    elif kind == 7:
        method, length, body = "GET", None, b""
        key, array = rng.choice(("1", "x", "", "%00")), rng.choice(("layer.l0/z", "../x", "%ff", "input"))
        path, allowed = f"/api/array?key={key}&name={array}", {200, 400}
    elif kind == 8:
        headers["Transfer-Encoding"], length = "chunked", None
        size = rng.choice((f"{len(body):x}", "-5", "zz", "ffffffffffffffff"))
        body = f"{size}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    elif kind == 9:
        headers["Content-Type"] = rng.choice(("text/plain", "", "multipart/form-data; boundary=x"))
        allowed = {415}
    elif kind == 10:
        headers["Authorization"], path, method, length, body = "", f"/?token={token[:-1]}", "GET", None, b""
        allowed = {401}
    elif kind == 11:
        body = b"[" * rng.randrange(1, 50_000)
        length = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items()), "Connection: close"]
    lines += [] if length is None else [f"Content-Length: {length}"]
    request = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
    leaves = kind in (12, 13)
    if kind == 12:
        request = request[: rng.randrange(1, len(request))]
    return request, {NO_ANSWER} if leaves else allowed, leaves


async def send(port: int, request: bytes, leaves: bool) -> tuple[int, bytes]:
    """Send a request and return the status and the body of its answer."""
    reader, writer = await connect(port, HOSTILE_ADDRESS)
    try:
        writer.write(request)
        if leaves:
            await asyncio.sleep(0.01)
            writer.transport.abort()
            return NO_ANSWER, b""
        head, _, body = (await asyncio.wait_for(reader.read(), 120)).partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else NO_ANSWER), body
    except ConnectionError:
        return NO_ANSWER, b""
    finally:
        writer.close()


async def attack(port: int, token: str, process: int, flags: Any) -> dict[str, Any]:
    """Ask everything; return counts, and what was wrong."""
    rng, wrong, statuses = random.Random(flags.seed), [], collections.Counter()
    runs = ["cups", "pulses", "verse"]
    body = json.dumps({"run": "cups", "input": "mint honey lemon"}).encode()
    lines = ["POST /api/explain HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Connection: close"]
    lines += [f"Authorization: Bearer {token}", f"Content-Length: {len(body)}"]
    right = "\r\n".join([*lines, "", ""]).encode() + body
    began, left, memory, asked = time.perf_counter(), flags.questions, math.nan, 0

    async def work() -> None:
        nonlocal left, memory, asked
        while left > 0 and time.perf_counter() - began < flags.seconds:
            left -= 1
            request, allowed, leaves = make_request(rng, runs, token)
            status, answer = await send(port, request, leaves)
            statuses[status] += 1
            if status not in allowed:
                wrong.append(f"{status} for {request[:300]!r}: {answer[:200]!r}")
            elif status >= 400 and answer and not answer.startswith((b'{"error":"', b"Invalid HTTP request")):
                wrong.append(f"{status} without a sentence: {answer[:200]!r}")
            if left == int((1 - WARM_UP) * flags.questions):
                memory = read_memory(process)
            if left % RIGHT_EVERY == 0:
                asked += 1
                status, answer = await send(port, right, False)
                if status != 200 or json.loads(answer)["steps"] != ["mint", "honey", "lemon"]:
                    wrong.append(f"a right question: {status}")

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return {
        "questions": sum(statuses.values()),
        "right_questions": asked,
        "seconds": round(time.perf_counter() - began, 1),
        "wrong": len(wrong),
        "first_wrong": wrong[:5],
        "statuses": {str(status): n for status, n in sorted(statuses.items())},
        "memory_mib": {"after_warm_up": memory, "at_the_end": read_memory(process)},
    }


def main() -> int:
    flags = build_parser(__doc__)
    flags.add_argument("--questions", type=int, default=10_000)
    given = flags.parse_args()
    with train() as runs:
        words = ["explore", *(str(runs / name) for name in ("cups", "pulses", "verse")), "--no-browser"]
        with start(words, runs.parent / "log") as (server, address):
            place = urlsplit(address)
            token = parse_qs(place.query)["token"][0]
            record = asyncio.run(attack(int(place.port or 0), token, server.pid, given))
        text = (runs.parent / "log").read_text()
    record["terminal"] = text[:1000]
    return finish(record, text, server.returncode, given)


if __name__ == "__main__":
    sys.exit(main())
