"""Run tests in forks of a process that has imported torch and pytest already: importing them takes four seconds."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mutation.workspace import Workspace

MEMORY = 8 << 30  # bytes of data that a fork may have: a fault must not take the memory of the whole machine
FILE_SIZE = 2 << 30  # bytes that a fork may write to one file
WRITES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
LIST_MODULES = """
import pkgutil, sys
import pytest, seqloom.lab.estimators, seqloom.cli.main
print(*sorted(name for name in sys.modules if name.split(".")[0] not in ("seqloom", "__main__")))
"""


@dataclass(frozen=True)
class Outcome:
    """What a fork did.

    Attributes:
        failed: The tests that failed, or why none could be run.
        is_timeout: Whether it was killed because it took too long.
        seconds: How long it took.
        passed: How many tests passed.
    """

    failed: list[str]
    is_timeout: bool
    seconds: float
    passed: int


def import_dependencies(checkout: Path) -> None:
    """Import what the package and its tests import from elsewhere, so that forks find it imported."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-W", "ignore", "-c", LIST_MODULES]
    listed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    for name in ("torch", "torch._dynamo", "hypothesis", *listed):
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:  # a module that another one makes at run time; a fork imports what it needs itself
                continue


class Selection:
    """A plugin of pytest that runs the given tests in the given order and remembers those that fail."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: number for number, test in enumerate(tests)}
        self.failed: list[str] = []
        self.passed = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (collection)")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed
        if report.failed:
            self.failed.append(report.nodeid)


def run_tests(workspace: Workspace, tests: Sequence[str], timeout: float, stop: bool = True) -> Outcome:
    """Run tests, until one fails or all, in a fork that starts in the workspace."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))

    def work() -> dict[str, Any]:
        selection = Selection(tests)
        flags = ["-x"] if stop else []
        code = pytest.main([*flags, "-m", "not long", *make_flags(workspace), *files], plugins=[selection])
        if code not in (0, 1, 5) and not selection.failed:  # 5: the fault renamed the tests
            selection.failed.append(f"pytest ended with {int(code)}")
        return {"failed": selection.failed, "passed": selection.passed}

    answer, is_timeout, seconds = run_in_fork(workspace, work, timeout)
    if answer is None:
        return Outcome(["the process took too long" if is_timeout else "the process ended"], is_timeout, seconds, 0)
    return Outcome(answer["failed"], False, seconds, answer["passed"])


def make_flags(workspace: Workspace) -> list[str]:
    """Return the flags of pytest that keep it inside the workspace."""
    return [
        *("-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(workspace.root)),
        *("-c", str(workspace.root / "pyproject.toml"), "--basetemp", str(workspace.scratch / "pytest")),
        *("--tb", "short", "-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of plugins, imported before the fork
    ]


def run_in_fork(
    workspace: Workspace, work: Callable[[], dict[str, Any]], timeout: float
) -> tuple[dict[str, Any] | None, bool, float]:
    """Call a function in a fork; return its result (None if it did not end well), whether it was killed, the time."""
    result, began = workspace.scratch / "result.json", time.monotonic()
    result.unlink(missing_ok=True)
    shutil.rmtree(workspace.scratch / "pytest", ignore_errors=True)
    pid = os.fork()
    if pid == 0:
        try:
            _enter(workspace)
            result.write_text(json.dumps(work()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)  # without what the parent registered for its own end
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() - began > timeout:
            kill_tree(pid)
            os.waitpid(pid, 0)
            return None, True, time.monotonic() - began
        time.sleep(0.02)
    answer = json.loads(result.read_text()) if result.exists() else None
    return answer, False, time.monotonic() - began


def _enter(workspace: Workspace) -> None:
    """Make the fork a process of the workspace: its folder, its package, its files and its limits."""
    os.setsid()
    log = os.open(workspace.scratch / "log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in ((0, nothing), (1, log), (2, log)):
        os.dup2(file, number)
    os.chdir(workspace.root)
    folders = {name: str(workspace.scratch / name) for name in ("tmp", "home")}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()
    os.environ |= {
        "PYTHONPATH": str(workspace.root / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": folders["tmp"],
        "HOME": folders["home"],
    }
    sys.dont_write_bytecode = True
    tempfile.tempdir = None  # read TMPDIR again
    sys.path[:] = [str(workspace.root / "src"), *(p for p in sys.path if not p.endswith(("/src", "/tests")))]
    for limit, value in ((resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_FSIZE, FILE_SIZE)):
        resource.setrlimit(limit, (value, value))
    allowed = (str(workspace.root.parent), "/dev/", "/proc/")

    def refuse_writes_elsewhere(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = flags is not None and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            paths = [path] if writes else []
        else:
            paths = list(arguments[:2]) if event in WRITES else []
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)) and path != "":
                place = os.path.abspath(os.fsdecode(path))
                if not place.startswith(allowed):
                    raise PermissionError(f"a fault may not change {place}")

    sys.addaudithook(refuse_writes_elsewhere)


def kill_tree(pid: int) -> None:
    """Kill a process that this one started, and all that it started, also those that have their own session."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, signal.SIGSTOP)  # so that it starts no others meanwhile
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        kill_tree(int(child))
    os.kill(pid, signal.SIGKILL)
