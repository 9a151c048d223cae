"""Run a function in a forked child with limits, and say how the child ended. For Linux and macOS."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MEMORY = 6 << 30  # bytes of data that a child may have; torch, polars and their threads take about 1 GiB of them
FILE_SIZE = 1 << 30  # bytes that a child may write to one file
SECONDS = 60.0  # a case takes well under a second; a busy machine may be many times slower


@dataclass(frozen=True)
class Ending:
    """How a child ended.

    Attributes:
        value: What the function returned; None if it did not return.
        problem: "" or what went wrong: "traceback", "hang", or the name of the signal that ended the child.
        errors: What the child wrote to stderr; with a traceback, also that.
    """

    value: Any
    problem: str
    errors: str


def run_isolated(work: Callable[[], Any], seconds: float = SECONDS, memory: int = MEMORY) -> Ending:
    """Call a function in a fork of this process and return its result, which must be JSON.

    The caller must not have used polars or torch: their threads do not exist in a fork. Importing them is allowed.
    """
    answer, reply = os.pipe()
    with tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()  # the child and all that it starts can be killed together
                os.close(answer)
                os.dup2(errors.fileno(), 2)
                for limit, value in (
                    (resource.RLIMIT_DATA, memory),
                    (resource.RLIMIT_FSIZE, FILE_SIZE),
                    (resource.RLIMIT_CORE, 0),
                ):
                    resource.setrlimit(limit, (value, value))
                data = json.dumps(work()).encode()
                while data:
                    data = data[os.write(reply, data) :]
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
                sys.__stderr__.flush()
            finally:
                os._exit(code)  # without what the parent registered for its own end
        os.close(reply)
        data, is_hang = _read_all(answer, time.monotonic() + seconds)
        if is_hang:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        errors.seek(0)
        text = errors.read().decode("utf-8", "replace")
    if is_hang:
        return Ending(None, "hang", text)
    if os.WIFSIGNALED(status):
        return Ending(None, signal.Signals(os.WTERMSIG(status)).name, text)
    if os.WEXITSTATUS(status):
        return Ending(None, "traceback", text)
    return Ending(json.loads(data), "", text)


def _read_all(file: int, until: float) -> tuple[bytes, bool]:
    """Read a pipe to its end and close it; return its bytes and whether the time was over before."""
    data = b""
    try:
        while True:
            ready, _, _ = select.select([file], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return data, True
            if not (block := os.read(file, 1 << 16)):
                return data, False
            data += block
    finally:
        os.close(file)
