"""Plant random faults, run the tests that run their lines, and print those that no test catches."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from mutation import line_map as lines
from mutation.faults import Fault, find_faults
from mutation.forks import Outcome, import_dependencies, kill_tree, run_tests
from mutation.line_map import LineMap
from mutation.workspace import Workspace

CHECKOUT = Path(__file__).resolve().parents[2]
MAP = CHECKOUT / "build" / "mutation"
START = 30.0  # seconds that a fork may take besides its tests, and
SLOWER = 5.0  # times as long as the tests took when they were recorded
GROUPS = (3.0, 10.0, 40.0)  # seconds of tests in the first, the second and every later fork of a fault


@dataclass(frozen=True)
class Verdict:
    """What became of a fault: `caught`, `timeout`, `survived` or `not run` (no test runs its line)."""

    fault: Fault
    result: str
    by: str
    tests: int
    seconds: float


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    flags.add_argument("--faults", type=int, default=200, help="how many; 0 brings the map of lines up to date only")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--limit", type=float, default=300, help="seconds of tests for one fault")
    flags.add_argument("--jobs", type=int, default=2, help="processes")
    flags.add_argument("--json", type=Path, help="write the record to this file")
    flags.add_argument("--again", type=Path, help="plant the faults that survived in this record instead of new ones")
    flags.add_argument("--passes", default="quick,slow", help="tests to record lines of")
    flags.add_argument("--stale", action="store_true", help="use the stored lines of tests, also of those that changed")
    options = flags.parse_args()
    report(f"importing what tests import, then copying {CHECKOUT}")
    import_dependencies(CHECKOUT)
    with tempfile.TemporaryDirectory(prefix="seqloom-mutate-") as folder:
        pool = [Workspace(CHECKOUT, Path(folder) / str(number)) for number in range(options.jobs)]
        if not options.stale:
            for which in options.passes.split(","):
                bring_up_to_date(pool, which)
        line_map = lines.load_map(CHECKOUT, MAP)
        if options.faults:
            began = time.time()
            faults = read_survivors(options.again) if options.again else choose(options.faults, options.seed)
            verdicts = judge_all(pool, faults, line_map, options.limit)
            print_table(verdicts)
            if options.json:
                write_record(options, verdicts, time.time() - began)
    return 0


def report(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def choose(count: int, seed: int) -> list[Fault]:
    """Return random faults, uniformly over all places.

    Each place has a random number that depends on its file and its text alone, and those with the smallest are taken: a
    change of the package changes the choice only where it changes places.
    """
    faults, seen = find_faults(CHECKOUT), Counter[str]()
    report(f"{len(faults)} places in {len({f.file for f in faults})} files")
    numbers = {}
    for fault in faults:
        name = f"{seed} {fault.file} {fault.kind} {fault.before} {fault.after}"
        seen[name] += 1
        numbers[fault] = hashlib.sha256(f"{name} {seen[name]}".encode()).digest()
    return sorted(faults, key=numbers.__getitem__)[:count]


def read_survivors(record: Path) -> list[Fault]:
    """Return the faults of a record that no test caught; those whose code is gone are left out."""
    known = {(f.file, f.before, f.after, f.kind): f for f in find_faults(CHECKOUT)}
    exact = {(f.file, f.line, f.before, f.after, f.kind): f for f in find_faults(CHECKOUT)}
    faults = []
    for entry in json.loads(record.read_text())["survivors"]:
        key = tuple(entry[name] for name in ("file", "before", "after", "kind"))
        fault = exact.get((key[0], entry["line"], *key[1:])) or known.get(key)
        if fault is None:
            report(f"gone: {entry['file']}:{entry['line']}")
        else:
            faults.append(fault)
    return faults


def bring_up_to_date(pool: Sequence[Workspace], which: str) -> None:
    """Record the lines of the test files that are new or changed."""
    missing = lines.list_missing(CHECKOUT, MAP, which)
    if missing:
        report(f"recording which lines the {which} tests of {len(missing)} files run")
    began = time.time()
    for number, (file, answer) in enumerate(
        share(pool, missing, lambda workspace, file: (file, lines.record_file(workspace, file, which))), 1
    ):
        lines.store(pool[0].root, MAP, file, which, answer)
        failed = f"; failed: {' '.join(answer['failed'])}" if answer["failed"] else ""
        report(f"{number}/{len(missing)} {time.time() - began:.0f} s  {file}: {len(answer['tests'])} tests{failed}")


def share(pool: Sequence[Workspace], items: Sequence[Any], work: Callable[[Workspace, Any], Any]) -> Iterator[Any]:
    """Call a function on items in one process for each workspace; yield results as they come."""
    context = multiprocessing.get_context("fork")
    todo, done = context.SimpleQueue(), context.SimpleQueue()

    def run(workspace: Workspace) -> None:
        while (number := todo.get()) is not None:
            try:
                done.put((work(workspace, items[number]), ""))
            except Exception:
                done.put((None, traceback.format_exc()))

    processes = [context.Process(target=run, args=(workspace,)) for workspace in pool]
    for process in processes:
        process.start()
    for number in [*range(len(items)), *[None] * len(pool)]:
        todo.put(number)
    try:
        for _ in items:
            result, problem = done.get()
            if problem:
                raise RuntimeError(problem)
            yield result
    except BaseException:
        for process in processes:
            if process.pid is not None:
                kill_tree(process.pid)
        raise
    finally:
        for process in processes:
            process.join()


def judge_all(pool: Sequence[Workspace], faults: Sequence[Fault], line_map: LineMap, limit: float) -> list[Verdict]:
    """Return the verdicts of all faults, in the order of the faults."""
    verdicts: dict[Fault, Verdict] = {}
    began = time.time()
    judge = Judge(line_map, limit)
    todo = list(faults)
    while todo:
        for verdict in share(pool, todo, judge.judge):
            verdicts[verdict.fault] = verdict
            report(
                f"{len(verdicts)}/{len(faults)} {time.time() - began:.0f} s  {verdict.result:8}  "
                f"{verdict.fault.describe()}  [{verdict.tests} tests, {verdict.seconds:.0f} s; {verdict.by}]"
            )
        unsound = judge.find_unsound(pool[0], {v.by for v in verdicts.values()})
        judge.ignored |= unsound
        todo = [v.fault for v in verdicts.values() if v.by in unsound]
    counts = Counter(verdict.result for verdict in verdicts.values())
    report(", ".join(f"{count} {result}" for result, count in counts.items()))
    return [verdicts[fault] for fault in faults]


class Judge:
    """Find out whether the tests catch a fault."""

    def __init__(self, line_map: LineMap, limit: float) -> None:
        self.map = line_map
        self.limit = limit
        self.ignored: set[str] = set()

    def judge(self, workspace: Workspace, fault: Fault) -> Verdict:
        tests = self._find_tests(fault)
        began, ran = time.monotonic(), 0
        if not tests:
            return Verdict(fault, "not run", "", 0, 0.0)
        for group in self._split(tests):
            outcome = self._run(workspace, fault, group)
            ran += outcome.passed
            if outcome.failed:
                result = "timeout" if outcome.is_timeout else "caught"
                return Verdict(fault, result, outcome.failed[0], ran + 1, time.monotonic() - began)
        return Verdict(fault, "survived", "", len(tests), time.monotonic() - began)

    def _run(self, workspace: Workspace, fault: Fault, tests: Sequence[str]) -> Outcome:
        """Run tests with a fault; on a busy machine they may need more time even without it, and then get it."""
        allowed = self._allow(tests)
        while True:
            with workspace.plant(fault):
                outcome = run_tests(workspace, tests, allowed)
            if not outcome.is_timeout or not run_tests(workspace, tests, allowed).is_timeout:
                return outcome
            allowed *= 4

    def find_unsound(self, workspace: Workspace, tests: Collection[str]) -> set[str]:
        """Return which tests fail without a fault too, in another order than that of their recording."""
        known = sorted(test for test in tests if test in self.map.seconds)
        failed = run_tests(workspace, known, self._allow(known), stop=False).failed if known else []
        for test in failed:
            report(f"fails without a fault: {test}")
        return set(failed)

    def _allow(self, tests: Sequence[str]) -> float:
        """Return how many seconds a fork may take for these tests."""
        return START + SLOWER * sum(self.map.seconds[test] for test in tests)

    def _find_tests(self, fault: Fault) -> list[str]:
        """Return the tests that run the line: files in the same folder first, then the fastest; up to the limit."""
        tests = self.map.find_tests(fault.file, 1 << fault.line)
        tests = tests or self.map.find_tests(fault.file, 1 << fault.statement)
        if self._is_run_by_import(fault):  # by whichever test imports the module first
            first, last = fault.function or (0, 0)
            inside = self.map.find_tests(fault.file, sum(1 << line for line in range(first, last + 1)))
            tests = [*tests, *(inside or self.map.find_tests(fault.file, -1))]
            for user in find_users(fault.file) if not tests else ():
                tests = [*tests, *self.map.find_tests(user, -1)]
        return self._order(fault, [test for test in dict.fromkeys(tests) if test not in self.ignored])

    @staticmethod
    def _is_run_by_import(fault: Fault) -> bool:
        """Return whether the line is one of a module, a class or a signature, which run when a module is imported."""
        return fault.function is None or fault.line < fault.function[0]

    def _order(self, fault: Fault, tests: Sequence[str]) -> list[str]:
        folder = fault.file.removeprefix("src/seqloom/").split("/")[:-1]
        files: dict[str, list[str]] = {}
        for test in sorted(tests, key=self.map.seconds.__getitem__):
            files.setdefault(test.partition("::")[0], []).append(test)

        def rank(file: str) -> tuple[int, float]:
            parts = file.removeprefix("tests/").split("/")[:-1]
            shared = next((n for n, (a, b) in enumerate(zip(folder, parts, strict=False)) if a != b), None)
            shared = min(len(folder), len(parts)) if shared is None else shared
            return -shared, sum(map(self.map.seconds.__getitem__, files[file])) / len(files[file])

        ordered, seconds = [], 0.0
        for file in sorted(files, key=rank):
            for test in files[file]:
                if seconds + self.map.seconds[test] <= self.limit:
                    ordered.append(test)
                    seconds += self.map.seconds[test]
        return ordered

    def _split(self, tests: Sequence[str]) -> Iterator[list[str]]:
        """Yield groups for one fork each."""
        group: list[str] = []
        seconds, sizes = 0.0, chain(GROUPS, repeat(GROUPS[-1]))
        most = next(sizes)
        for test in tests:
            if group and seconds + self.map.seconds[test] > most:
                yield group
                group, seconds, most = [], 0.0, next(sizes)
            group.append(test)
            seconds += self.map.seconds[test]
        yield group


@cache
def find_users(file: str) -> tuple[str, ...]:
    """Return the files of the package that import a module."""
    module = file.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    parent, _, name = module.rpartition(".")
    pattern = re.compile(
        rf"(from|import) {re.escape(module)}\b|from {re.escape(parent)} import .*\b{re.escape(name)}\b"
    )
    sources = (CHECKOUT / "src" / "seqloom").rglob("*.py")
    return tuple(s.relative_to(CHECKOUT).as_posix() for s in sources if pattern.search(s.read_text()))


def print_table(verdicts: Sequence[Verdict]) -> None:
    """Print the survivors, those that no test runs apart."""
    caught = sum(v.result in ("caught", "timeout") for v in verdicts)
    print(f"{caught} of {len(verdicts)} faults caught ({100 * caught / max(1, len(verdicts)):.1f} %)")
    for result, title in (("survived", "survived"), ("not run", "on lines that no test runs")):
        group = [v for v in verdicts if v.result == result]
        if group:
            print(f"\n{len(group)} {title}:")
            for verdict in sorted(group, key=lambda v: (v.fault.file, v.fault.line)):
                print(f"  {verdict.fault.describe()}")


def write_record(options: argparse.Namespace, verdicts: Sequence[Verdict], seconds: float) -> None:
    """Write the counts and the survivors as JSON."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "pytest", "coverage", "numpy")}
    record = {
        "command": f"make mutate N={options.faults} SEED={options.seed}",
        "seed": options.seed,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "processor": find_processor()},
        "versions": {"python": platform.python_version(), **versions},
        "limit_seconds": options.limit,
        "seconds": round(seconds),
        "counts": {"faults": len(verdicts), **Counter(v.result for v in verdicts)},
        "survivors": [{"result": v.result, **asdict(v.fault)} for v in verdicts if v.result in ("survived", "not run")],
        "caught": [{"place": v.fault.describe(), "by": v.by} for v in verdicts if v.result in ("caught", "timeout")],
    }
    options.json.write_text(json.dumps(record, indent=1) + "\n")


def find_processor() -> str:
    with contextlib.suppress(OSError):
        names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        return names[0] if names else platform.processor()
    return platform.processor()


if __name__ == "__main__":
    sys.exit(main())
