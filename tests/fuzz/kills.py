"""Kill commands at every file operation and at random moments; started again, they end as without a kill.

    python -m fuzz.kills --cases 1000 --seed 0        (with tests/ on the path; `make kills N=1000`)

A case runs a command in a fresh folder, kills it (SIGKILL), and starts it again as a user would. That must
end with exit code 0, the same files with the same content as an undisturbed run (times and dates left out), and
nothing else. A server ends when it has answered a request; started again on its port, it must give the same answer.
torch is imported once: every command runs in a process forked from this one. For Linux.
"""

from __future__ import annotations

import argparse
import collections
import csv
import ctypes
import gzip
import hashlib
import http.client
import importlib
import io
import itertools
import json
import os
import pkgutil
import platform
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import seqloom
from fuzz.file_operations import Kill, Watch
from seqloom.cli import main as cli
from seqloom.lab.jobs import runner
from seqloom.lab.training.run import versions

LONGEST = 180.0  # seconds that a command may take before it counts as hanging
ORPHANS = 60.0  # seconds in which the workers of a killed command must have ended
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2): orphans become children of this process
MOMENTS = 4  # one in so many kills is at a random moment, the others are at file operations
TWICE = 5  # one in so many cases kills the second start, too
TIMES = {"seconds", "date", "created", "ms_per_step", "latency", "speeds", "hardware"}
TIMES |= {"training (s)", "latency 1 (ms)", "latency 64 (ms)", "ms/step"}
DERIVED = {"digest", "metrics"}  # of texts that have times in them
NAMED_ONLY = ("log.txt", ".lock", ".html", ".md")  # files that must be there, whatever is in them
MEASURED = ("speed-", "latency-")  # jobs whose results are times
LIBRARIES = (  # what commands import when they need it
    *("torch._dynamo", "torch._inductor.utils", "torch._inductor.cpu_vec_isa", "torch.utils.flop_counter"),
    *("sklearn.feature_extraction.text", "sklearn.linear_model", "sklearn.multiclass", "scipy.stats", "optuna"),
    *("safetensors.torch", "rich.progress", "rich.table", "rich._emoji_codes"),
)
# Temporary folders of Python: nothing can remove one whose process is killed inside; the system clears their home.
TEMPORARY = "tmp/tmp"
ONNXRUNTIME = ("home/.cache/Microsoft", "tmp/.ses")  # what onnxruntime keeps of its own when it is imported
CELL = """
import torch
from seqloom.core.cell import Cell

class Leaky(Cell, name="leaky"):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.weight = torch.nn.Parameter(torch.randn(hidden_size, input_size) / 4)

    def step(self, x, state):
        h = 0.5 * state[0] + torch.tanh(x @ self.weight.T)
        return h, (h,)
"""
SMALL = "--hidden 4 --embedding 4 --batch 16 --epochs 2 --threads 1 --device cpu --seed 0"


@dataclass(frozen=True)
class Command:
    """A command line, and the one that a person types after a kill if `begun` exists; none if `done` exists."""

    start: str
    again: str = ""
    begun: str = ""
    weight: int = 1  # cases of a hundred
    stdin: str = os.devnull
    workers: bool = False  # jobs of a comparison run in processes, in place of this one
    victim: str = "command"  # or "worker"
    done: str = ""
    request: str = ""  # the body of a prediction that is asked of a server; then it is stopped


# fmt: off
COMMANDS = {
    "train by name": Command(
        f"train words.csv --out runs/a {SMALL} --checkpoint-steps 1 --ema 0.9",
        "train --resume --out runs/a", "runs/a", 15,
    ),
    "train on a packed file": Command(
        f"train packed.csv.gz {SMALL} --patience 1", f"train packed.csv.gz {SMALL} --resume", "runs/packed-gru", 12
    ),
    "train an own cell": Command(
        f"train words.csv --model cell.py:Leaky --out runs/a {SMALL}", "train --resume --out runs/a", "runs/a", 8
    ),
    "predict a file": Command("predict runs/trained new.csv --out out.csv --keep word", weight=12),
    "predict standard input": Command(
        "predict runs/trained - --stdin csv --out out.jsonl --probabilities", weight=8, stdin="new.csv"
    ),
    "study": Command("study adding --quick --models gru --seeds 1 --effort 0.001 --device cpu --out out", weight=10),
    "compare in a folder": Command(
        "compare words.csv --out out --models gru --parameters 500 --seeds 1 --tune 1 --steps 3 --workers 1",
        "compare --resume --out out", "out/compare.json", 7,
    ),
    "compare by default": Command(
        "compare words.csv --models gru,rnn --parameters 500 --seeds 1 --tune 1 --steps 3 --workers 1",
        "compare words.csv --resume", "comparisons/words/compare.json", 5,
    ),
    "compare in processes": Command(
        "compare words.csv --out out --models gru --parameters 500 --seeds 1 --tune 1 --steps 3 --workers 1",
        "compare --resume --out out", "out/compare.json", 2, workers=True,
    ),
    "compare without a worker": Command(
        "compare words.csv --out out --models gru --parameters 500 --seeds 1 --tune 1 --steps 3 --workers 1",
        "compare --resume --out out", "out/compare.json", 1, workers=True, victim="worker",
    ),
    **{
        f"export to {to}": Command(f"export runs/trained --to {to} --out out", weight=weight, done="out")
        for to, weight in (("onnx", 3), ("pt2", 2), ("c", 3), ("safetensors", 4))
    },
    "serve": Command(
        "serve runs/trained --port {port}", weight=8, request='{"rows": ["aeiou", "bcdfg"], "probabilities": true}'
    ),
}
# fmt: on


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), what it printed, and its file operations."""

    code: int
    error: str
    operations: list[str]
    seconds: float
    worker_killed: bool


@dataclass(frozen=True)
class Met:
    """A kill that happened before its process had ended."""

    kind: str
    where: str

    @staticmethod
    def of(kill: Kill, ended: Ended) -> Met:
        if kill.operation is None:
            return Met("at a random moment", f"after {ended.seconds:.3f} s")
        where = f"operation {kill.operation}: {ended.operations[-1]}"
        return Met("in the middle of a write" if kill.torn else "before a file operation", where)

    def __str__(self) -> str:
        return f"a kill {self.kind} ({self.where})"


@dataclass
class Tally:
    """What happened to the cases of a command."""

    cases: int
    file_operations: int  # of an undisturbed run
    kills: collections.Counter[str] = field(default_factory=collections.Counter)  # by kind
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)  # of the cases
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Ground:
    """The folder in which all cases of all commands take place, one after the other, under the same names."""

    def __init__(self, work: Path) -> None:
        self.work, self.case, self.imported = work, work / "case", work / "imported.txt"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]

    @cached_property
    def template(self) -> Path:
        """Data, and a trained run."""
        made = self.work / "template"
        made.mkdir()
        draw = random.Random(0)
        kinds = {"vowels": "aeiou", "consonants": "bcdfg"}
        rows = [f"{''.join(draw.choices(letters, k=5))},{kind}" for _ in range(30) for kind, letters in kinds.items()]
        text = "\n".join(["word,label", *rows]) + "\n"
        (made / "words.csv").write_text(text)
        (made / "new.csv").write_text("\n".join(["word", *(row.partition(",")[0] for row in rows)]) + "\n")
        (made / "packed.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        (made / "cell.py").write_text(CELL)
        (made / "tmp").mkdir()
        shutil.copytree(made, self.case)
        ended = self.run(Command(f"train words.csv --out runs/trained {SMALL}"))
        assert ended.code == 0, ended.error
        (self.case / "runs").rename(made / "runs")
        return made

    def fresh(self) -> None:
        """Make the folder of a new case."""
        template = self.template
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(template, self.case)

    def run(self, command: Command, again: bool = False, kill: Kill = Kill()) -> Ended:
        """Run a command in a process, and end it as `kill` says; return when all its processes have ended."""
        words = (command.again if again and command.again else command.start).format(port=self.port).split()
        log, error = self.work / "operations.txt", self.work / "error.txt"
        self.imported.unlink(missing_ok=True)
        began = time.monotonic()
        process = os.fork()
        if process == 0:
            self._become(command, words, kill, log, error)
        client = threading.Thread(target=self._ask, args=(process, command.request))
        if command.request:
            client.start()
        code, worker_killed = self._wait(process, began, command, kill.after)
        seconds = time.monotonic() - began
        if command.request:
            client.join()
        _wait_for_orphans()
        return Ended(code, error.read_text(errors="replace"), log.read_text().splitlines(), seconds, worker_killed)

    def _wait(self, process: int, began: float, command: Command, after: float | None) -> tuple[int, bool]:
        """Return the exit code, and whether a worker was killed. What takes too long is killed, too."""
        worker: int | None = None
        while True:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), worker is not None
            spent = time.monotonic() - began
            if spent > LONGEST or (after is not None and spent >= after and command.victim == "command"):
                os.kill(process, signal.SIGKILL)
            elif after is not None and spent >= after and worker is None:
                worker = _child_of(process)
                if worker is not None:
                    os.kill(worker, signal.SIGKILL)
            time.sleep(0.002)

    def _ask(self, process: int, request: str) -> None:
        """Ask a server until it answers, keep the answer as a file of the case, and stop the server."""
        while Path(f"/proc/{process}/cmdline").exists():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST)
            try:
                connection.request("POST", "/v1/predict", request, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = f"{answer.status}\n{answer.read().decode()}"
            except (OSError, http.client.HTTPException):  # it does not answer yet, or was killed
                time.sleep(0.01)
                continue
            finally:
                connection.close()
            (self.case / "answer").write_text(text)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            return

    def _become(self, command: Command, words: list[str], kill: Kill, log: Path, error: Path) -> None:
        """Turn this process into the command; never returns."""
        code = 1
        try:
            os.chdir(self.case)
            places = {"SEQLOOM_CACHE": "cache", "SEQLOOM_STATE": "state", "TMPDIR": "tmp", "HOME": "home"}
            os.environ |= {name: str(self.case / place) for name, place in places.items()}
            tempfile.tempdir = str(self.case / "tmp")
            for number, path in enumerate((Path(command.stdin), self.work / "output.txt", error)):
                flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                os.dup2(os.open(path, flags), number)
            if not command.workers:
                runner.Processes = lambda _: runner.Here()
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            Watch(str(self.case), handle, kill).start()
            cli.main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            with suppress(OSError):  # of the limits that a command set
                self.imported.write_text("\n".join(sys.modules))
            os._exit(code)

    def undisturbed(self, command: Command) -> tuple[Ended, dict[str, Any]]:
        """Run a command without a kill; return how it ended, and what it left.

        What it imported is imported here, so that the forks of the cases need not.
        """
        self.fresh()
        ended = self.run(command)
        assert ended.code == 0, ended.error
        for name in sorted(set(self.imported.read_text().splitlines()) - set(sys.modules)):
            with suppress(Exception):  # such as modules that were made at run time
                importlib.import_module(name)
        return ended, contents(self.case)


def _wait_for_orphans() -> None:
    """Wait for the workers of a command that was killed.

    Raises:
        AssertionError: If one lives on.
    """
    end = time.monotonic() + ORPHANS
    with suppress(ChildProcessError):  # there is none left
        while True:
            assert time.monotonic() < end, "a worker outlives its command"
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)


def _child_of(process: int) -> int | None:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(children[0]) if children else None


def contents(folder: Path) -> dict[str, Any]:
    """Return what is in every file of a folder, without times; the names alone of folders, logs and pages.

    Entries of the cache are left out if they are complete: the same data under another path has another one. So are
    compiled cells: a process that is killed may leave one to the next. So is what onnxruntime writes.
    """
    whole = tuple(f"{path.parent}" for path in folder.glob("cache/*-*/done.json") if path.parent.name[0] != ".")
    whole += (str(folder / "cache" / "cells"), *(str(folder / name) for name in (*ONNXRUNTIME, TEMPORARY)))
    above = {folder / parent for name in ONNXRUNTIME for parent in Path(name).parents}
    paths = [path for path in sorted(folder.rglob("*")) if not str(path).startswith(whole) and path not in above]
    return {str(path.relative_to(folder)): _content(path) for path in paths}


def _content(path: Path) -> Any:
    if path.is_dir() or path.name.endswith(NAMED_ONLY) or path.parent.name.startswith(MEASURED):
        return None
    data = path.read_bytes()
    if path.suffix == ".json":
        return _timeless(json.loads(data))
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in data.splitlines()]
    if path.suffix == ".csv":
        return _timeless(list(csv.DictReader(io.StringIO(data.decode()))))
    return hashlib.sha256(data).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: v for name, v in value.items() if name not in TIMES | DERIVED and not name.startswith(MEASURED)}
        return {name: _timeless(v) for name, v in kept.items()}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def differences(expected: dict[str, Any], actual: dict[str, Any]) -> list[str]:
    """Describe which files are missing, new or different."""
    computed = [f"{name} is missing" for name in expected.keys() - actual.keys()]
    computed += [f"{name} is left behind" for name in actual.keys() - expected.keys()]
    both = expected.keys() & actual.keys()
    return sorted(computed + [f"{name} has another content" for name in both if expected[name] != actual[name]])


def choose_kills(command: Command, whole: Ended, cases: int, draw: random.Random) -> Iterator[Kill]:
    """Return when to kill, for each case: at each file operation in turn, and now and then at a random moment."""
    timed = command.victim == "worker" or not whole.operations
    chosen = iter(() if timed else choose_operations(whole.operations, max(1, cases - cases // MOMENTS), draw))
    for number in range(cases):
        if timed or number % MOMENTS == MOMENTS - 1:
            yield Kill(after=draw.uniform(0, whole.seconds))
            continue
        operation = next(chosen)
        yield Kill(operation=operation, torn=whole.operations[operation].startswith("write") and draw.random() < 0.5)


def _draw_kill(whole: Ended, draw: random.Random) -> Kill:
    if not whole.operations:
        return Kill(after=draw.uniform(0, whole.seconds))
    return Kill(operation=draw.randrange(len(whole.operations)))


def choose_operations(operations: Sequence[str], count: int, draw: random.Random) -> list[int]:
    """Return the numbers of `count` operations, spread evenly: different ones first, then their repetitions."""
    different: dict[str, int] = {}
    for number, operation in enumerate(operations):
        different.setdefault(re.sub(r"[0-9a-f]{8,}|\d+", "#", operation), number)
    first = list(different.values())
    rest = sorted(set(range(len(operations))) - set(first))
    chosen: list[int] = []
    for group in itertools.chain((first, rest), itertools.repeat(range(len(operations)))):
        left = count - len(chosen)
        if left <= len(group):
            return chosen + [group[int((i + draw.random()) * len(group) / left)] for i in range(left)]
        chosen += group
    raise AssertionError


def check(ground: Ground, command: Command, kills: Sequence[Kill], expected: dict[str, Any]) -> list[Met]:
    """Kill a command, and start it again until it ends; return the kills that met it.

    Raises:
        AssertionError: If it does not end as an undisturbed one.
    """
    ground.fresh()
    met: list[Met] = []
    for kill in [*kills, Kill()]:
        if met and command.done and (ground.case / command.done).exists():
            break
        again = bool(command.begun) and (ground.case / command.begun).exists()
        ended = ground.run(command, again, kill)
        assert ended.seconds < LONGEST, f"hangs after {_joined(met)}"
        if ended.code == -signal.SIGKILL:
            met.append(Met.of(kill, ended))
            continue
        assert ended.code == 0, f"exit code {ended.code} after {_joined(met)}: {ended.error.strip()[-600:]}"
        assert "Traceback" not in ended.error, f"a traceback after {_joined(met)}: {ended.error.strip()[-2000:]}"
        if ended.worker_killed:
            met.append(Met("of a worker", f"after {kill.after:.3f} s"))
        break
    wrong = differences(expected, contents(ground.case))
    assert not wrong, f"after {_joined(met)}: {'; '.join(wrong)}"
    return met


def _joined(met: Sequence[Met]) -> str:
    return " and ".join(map(str, met)) or "no kill"


def attack(ground: Ground, name: str, cases: int, seed: int) -> Tally:
    """Run the cases of one command."""
    command, began = COMMANDS[name], time.monotonic()
    whole, expected = ground.undisturbed(command)
    draw, tally = random.Random(f"{name} {seed}"), Tally(cases, len(whole.operations))
    for number, kill in enumerate(choose_kills(command, whole, cases, draw)):
        more = [_draw_kill(whole, draw)] if number % TWICE == TWICE - 1 else []
        try:
            all_met = check(ground, command, [kill, *more], expected)
            tally.kills.update(met.kind for met in all_met)
            tally.outcomes["as without a kill" if all_met else "ended before the kill"] += 1
        except AssertionError as error:
            tally.kills["of cases that failed"] += 1
            tally.outcomes["wrong"] += 1
            tally.failures.append(f"{name}, seed {seed}, case {number} of {cases}: {error}")
            print(tally.failures[-1], file=sys.stderr, flush=True)
    tally.seconds = round(time.monotonic() - began, 1)
    kills = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.kills.items()))
    print(
        f"{name}: {cases} cases, seed {seed}: {len(tally.failures)} wrong; kills: {kills}; "
        f"{len(whole.operations)} file operations; {tally.seconds:.0f} s",
        flush=True,
    )
    return tally


def prepare() -> None:
    """Import what the commands need, in one thread, so that a fork of this process starts at once."""
    torch.set_num_threads(1)
    os.environ |= {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    ours = (module.name for module in pkgutil.walk_packages(seqloom.__path__, "seqloom."))
    for module in (*ours, *LIBRARIES):
        with suppress(ImportError):  # of what is not installed
            importlib.import_module(module)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--cases", type=int, default=1000, help="of all commands together")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--commands", default="", help="some of them, separated by commas; each has its share of cases")
    flags.add_argument("--json", type=Path, help="a file for the record")
    given = flags.parse_args()
    names = [name.strip() for name in given.commands.split(",") if name.strip()] or list(COMMANDS)
    prepare()
    total, tallies = sum(command.weight for command in COMMANDS.values()), {}
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder).resolve())
        for name in names:
            cases = max(1, round(given.cases * COMMANDS[name].weight / total))
            tallies[name] = attack(ground, name, cases, given.seed)
            if given.json is not None:
                given.json.write_text(json.dumps(record(given, tallies), indent=1) + "\n")
    return int(any(tally.failures for tally in tallies.values()))


def record(given: argparse.Namespace, tallies: dict[str, Tally]) -> dict[str, Any]:
    """Return the record of a run: settings, machine and results."""
    kills = sum((tally.kills for tally in tallies.values()), collections.Counter())
    words = f" --commands '{given.commands}'" if given.commands else ""
    return {
        "command": f"python -m fuzz.kills --cases {given.cases} --seed {given.seed}{words}",
        "date": time.strftime("%Y-%m-%d"),
        "seed": given.seed,
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "cases": sum(tally.cases for tally in tallies.values()),
        "kills": sum(kills.values()),
        "kills by kind": dict(kills),
        "outcomes": dict(sum((tally.outcomes for tally in tallies.values()), collections.Counter())),
        "failures": [failure for tally in tallies.values() for failure in tally.failures],
        "seconds": round(sum(tally.seconds for tally in tallies.values()), 1),
        "commands": {name: vars(tally) for name, tally in tallies.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
