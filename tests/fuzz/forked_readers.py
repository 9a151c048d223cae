"""Fork the subprocesses of readers from a process that has imported them: imports take longer than most cases."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import IO, Any

from seqloom.lab.data.readers import subprocess_call, table  # noqa: F401  # imported before the forks


def fork_readers() -> None:
    """Let `subprocess_call.call` fork, in this process; call it before polars is used, whose threads do not fork."""
    server, end = socket.socketpair()
    if os.fork() == 0:
        server.close()
        _serve(end)
    end.close()
    popen = partial(_Forked, server)
    subprocess_call.subprocess = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)  # type: ignore[attr-defined]


def _serve(end: socket.socket) -> None:
    """Fork for each request, and answer with the exit code; end with the other process."""
    os.environ["RUST_BACKTRACE"] = "0"
    while True:
        code, files, _, _ = socket.recv_fds(end, 4096, 3)
        if not code:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            _run(code.decode(), files)
        for file in files:
            os.close(file)
        end.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _run(code: str, files: list[int]) -> None:
    """Run code with other standard files, and end the process."""
    status = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        exec(code, {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _Forked:
    """What `subprocess_call.call` needs of subprocess.Popen."""

    returncode: int

    def __init__(self, server: socket.socket, command: list[str], stderr: IO[bytes], **_: Any) -> None:
        self._server = server
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        socket.send_fds(server, [command[-1].encode()], [read_in, write_out, stderr.fileno()])
        os.close(read_in)
        os.close(write_out)
        self.stdin, self.stdout = os.fdopen(write_in, "w"), os.fdopen(read_out)

    def __enter__(self) -> _Forked:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):  # it has ended before it read the request
            self.stdin.close()
        self.stdout.close()
        self.returncode = int(self._server.recv(16))
