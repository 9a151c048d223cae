"""Call a function in a subprocess: it may need much memory, or crash on the file that it reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from seqloom.core.errors import UserError

Request = dict[str, Any]


class SubprocessKilledError(UserError):
    """A subprocess that a signal ended; the message is the name of the signal."""


def call(entry: str, request: Request) -> None:
    """Run Python code that calls `answer` in a subprocess, which ends when this process ends.

    Args:
        entry: The code.
        request: What `answer` passes on, as JSON.

    Raises:
        UserError: If the function raised it in the subprocess; or SubprocessKilledError.
        RuntimeError: If the function raised another exception; with its traceback.
    """
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-P", "-c", entry]  # -P: import nothing from the current folder
        environment = os.environ | {"RUST_BACKTRACE": "0"}  # that of polars takes seconds and is not shown
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            reply = process.stdout.read()  # stdin stays open meanwhile: the subprocess takes its end as our death
        if error := reply.strip():
            raise UserError(json.loads(error.splitlines()[-1])["error"])
        if process.returncode < 0:
            raise SubprocessKilledError(signal.Signals(-process.returncode).name)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"a subprocess failed\n{errors.read().decode('utf-8', 'replace')}")


def answer(function: Callable[[Request], object]) -> None:
    """Run as the subprocess: call a function with the request, and print a user's error to stdout."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        function(request)
    except (UserError, OSError) as error:
        print(json.dumps({"error": str(error)}))


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read, whose lock Python needs to shut down
    os._exit(1)
