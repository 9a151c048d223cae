"""Run Python code in a new process that has imported torch already.

Importing torch takes two seconds, longer than most of what tests do in a process. A server imports it once and forks
for each request; the fork has its own folder, environment, input and output, and ends as any process does. What must
be a new process in every respect, such as one whose imports are tested, uses `subprocess`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# Reads names of folders with a request; answers with the fork's id, then with its exit code. The fork leaves the loop.
SERVER = """
import atexit, contextlib, gc, importlib, json, os, sys, threading, traceback
import torch, torch._dynamo  # the first step of an optimizer imports the latter
with contextlib.suppress(ImportError):
    import pydantic, sklearn.linear_model, sklearn.preprocessing, torch.fx.experimental.symbolic_shapes
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()  # a collection in a fork would copy every page of these objects
while True:
    folder = os.read(0, 4096).decode().strip()
    if not folder:
        sys.exit()
    fork = os.fork()
    if fork == 0:
        break
    os.write(1, f"{fork}\\n".encode())
    os.write(1, f"{os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])}\\n".encode())
os.setsid()
for number, name in enumerate(("input", "output", "errors")):
    file = os.open(os.path.join(folder, name), os.O_RDWR)
    os.dup2(file, number)
    os.close(file)
with open(os.path.join(folder, "request.json")) as file:
    code, words, cwd, environment = json.load(file)
os.chdir(cwd)
os.environ.clear()
os.environ.update(environment)
sys.argv = ["-c", *words]
status = 0
try:
    exec(code, {"__name__": "__main__"})
except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if status and not isinstance(end.code, int):
        print(end.code, file=sys.stderr)
except BaseException:
    traceback.print_exc()
    status = 1
threading._shutdown()
atexit._run_exitfuncs()
for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError):
        stream.flush()
os._exit(status)  # taking down the modules would copy the pages of all of them
"""


class WarmPython:
    """Run code as `python *flags -c code *words` does, without its start.

    Args:
        flags: Of Python.
        modules: What the processes have imported, besides torch.
    """

    def __init__(self, *flags: str, modules: Sequence[str] = ()) -> None:
        self._command = [sys.executable, *flags, "-c"]
        self._modules = modules
        self._server: subprocess.Popen[bytes] | None = None

    def run(
        self, code: str, *words: str, cwd: Path, env: Mapping[str, str], input: str = "", timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run the code and return its exit code and what it printed; torch reads OMP_NUM_THREADS before, as 1."""
        if sys.platform != "linux":  # where a process with threads of the system's libraries cannot be forked
            command = [*self._command, code, *words]
            return subprocess.run(
                command,
                cwd=cwd,
                env=dict(env),
                input=input,
                timeout=timeout,
                capture_output=True,
                text=True,
                check=False,
            )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file, text in (("input", input), ("output", ""), ("errors", "")):
                (folder / file).write_text(text)
            (folder / "request.json").write_text(json.dumps([code, words, str(cwd), dict(env)]))
            status = self._ask(name, timeout)
            texts = [(folder / file).read_text() for file in ("output", "errors")]
        return subprocess.CompletedProcess([*self._command, code, *words], status, *texts)

    def _ask(self, folder: str, timeout: float) -> int:
        if self._server is None:
            self._server = subprocess.Popen(
                [*self._command, SERVER, *self._modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(f"{folder}\n".encode())
        fork = int(self._server.stdout.readline())
        if not select.select([self._server.stdout], [], [], timeout)[0]:
            os.killpg(fork, signal.SIGKILL)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            assert self._server.stdin and self._server.stdout
            self._server.stdin.close()
            self._server.wait()
            self._server.stdout.close()
