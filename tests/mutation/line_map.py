"""Which tests run which lines, and how long they take; kept in a folder and brought up to date for changed tests."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mutation.forks import make_flags, run_in_fork
from mutation.workspace import Workspace

PASSES = {"quick": "not slow and not long", "slow": "slow and not long"}
TIMEOUT = 1800.0  # seconds for all tests of a file, traced
PACKAGE = "src/seqloom/"


class LineRecorder:
    """A plugin of pytest that records the lines of the package that each test and each shared fixture runs."""

    def __init__(self, workspace: Workspace) -> None:
        import coverage

        self.root = workspace.root
        include = [str(workspace.root / PACKAGE / "*")]
        self.coverage = coverage.Coverage(data_file=None, include=include, config_file=False)
        self.seconds: dict[str, float] = defaultdict(float)
        self.fixtures: dict[str, list[str]] = {}
        self.context: list[str] = []
        self.failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
            shared = [d for group in definitions.values() for d in group if d.scope != "function"]
            self.fixtures[item.nodeid] = [_name_fixture(d) for d in shared]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._enter(item.nodeid)
        yield
        self._leave()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            yield
            return
        self._enter(_name_fixture(fixturedef))
        yield
        self._leave()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def _enter(self, context: str) -> None:
        self.context.append(context)
        self.coverage.switch_context(context)

    def _leave(self) -> None:
        self.context.pop()
        self.coverage.switch_context(self.context[-1] if self.context else "")

    def collect(self) -> dict[str, Any]:
        """Return for each test its duration and its lines: a bit set, in hexadecimal digits, for each file."""
        data = self.coverage.get_data()
        masks: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for file in data.measured_files():
            name = Path(file).relative_to(self.root).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    masks[context][name] |= 1 << line
        tests = {}
        for test, fixtures in self.fixtures.items():
            if test not in self.seconds or test in self.failed:
                continue
            lines: dict[str, int] = dict(masks[test])
            for fixture in fixtures:
                for name, mask in masks[fixture].items():
                    lines[name] = lines.get(name, 0) | mask
            tests[test] = {"seconds": round(self.seconds[test], 3), "lines": {n: f"{m:x}" for n, m in lines.items()}}
        return {"tests": tests, "failed": sorted(self.failed)}


def _name_fixture(definition: Any) -> str:
    return f"fixture {definition.baseid} {definition.argname}"


def record_file(workspace: Workspace, test_file: str, which: str) -> dict[str, Any]:
    """Run the tests of one file, of one pass, and return their lines."""
    if which == "slow" and "slow" not in (workspace.root / test_file).read_text():
        return {"tests": {}, "failed": []}

    def work() -> dict[str, Any]:
        recorder = LineRecorder(workspace)
        recorder.coverage.start()
        pytest.main(["-m", PASSES[which], *make_flags(workspace), test_file], plugins=[recorder])
        recorder.coverage.stop()
        return recorder.collect()

    answer, _, _ = run_in_fork(workspace, work, TIMEOUT)
    return answer or {"tests": {}, "failed": [f"{test_file}: the process did not end"]}


@dataclass
class LineMap:
    """The tests of each line.

    Attributes:
        tests: The lines of each test, by file, as a bit set.
        seconds: The duration of each test.
    """

    tests: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def find_tests(self, file: str, lines: int) -> list[str]:
        """Return the tests that run a line of a bit set."""
        return [test for test, files in self.tests.items() if files.get(file, 0) & lines]


def list_test_files(root: Path) -> list[str]:
    return sorted(file.relative_to(root).as_posix() for file in (root / "tests").rglob("test_*.py"))


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def load_map(checkout: Path, folder: Path) -> LineMap:
    """Read the stored lines. In a source that has changed since, every test of the file is one of every line."""
    line_map = LineMap()
    for stored in sorted(folder.glob("*/*.json")):
        record = json.loads(stored.read_text())
        if not (checkout / record["file"]).exists():
            continue
        changed = {
            name
            for name, value in record["sources"].items()
            if not (checkout / name).exists() or digest(checkout / name) != value
        }
        for test, entry in record["tests"].items():
            masks = {name: -1 if name in changed else int(mask, 16) for name, mask in entry["lines"].items()}
            line_map.tests[test] = masks
            line_map.seconds[test] = entry["seconds"]
    return line_map


def list_missing(checkout: Path, folder: Path, which: str) -> list[str]:
    """Return the test files whose lines are not stored, or that have changed since."""
    missing = []
    for file in list_test_files(checkout):
        stored = place_of(folder, file, which)
        if not stored.exists() or json.loads(stored.read_text())["digest"] != digest(checkout / file):
            missing.append(file)
    return missing


def place_of(folder: Path, test_file: str, which: str) -> Path:
    return folder / which / (test_file.replace("/", "+") + ".json")


def store(root: Path, folder: Path, test_file: str, which: str, answer: dict[str, Any]) -> None:
    """Store the lines of the tests of one file, with digests of what was run: files of the copy at `root`."""
    sources = sorted({name for entry in answer["tests"].values() for name in entry["lines"]})
    record = {
        "file": test_file,
        "digest": digest(root / test_file),
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "sources": {name: digest(root / name) for name in sources},
        **answer,
    }
    place = place_of(folder, test_file, which)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_suffix(".partial")
    partial.write_text(json.dumps(record))
    partial.rename(place)
