"""Run a job and store its result: in this process, or in several that train together under torchrun, one GPU each."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from threadpoolctl import threadpool_limits

from seqloom.core.errors import UserError, UserTypeError
from seqloom.core.plurals import count
from seqloom.lab.files.checkpoint import write_file
from seqloom.lab.files.sealed import JSON
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.jobs.job import Job, Result

RESULT, FAILED = "result.json", "failed.txt"  # names of files in a job's folder
JOB, ANSWER = ".job.json", ".answer.json"  # of a job in several processes
SHOWN = 3  # differences that an error message names


def call(job: Job, folder: Path) -> Result:
    """Run a job in its folder and store what it returned; an error becomes a failed result.

    Only one process works in a folder, since a machine that was considered dead may still run the job. A second process
    waits and returns the result of the first.
    """
    own = folder / job.key
    own.mkdir(parents=True, exist_ok=True)
    with FileLock(own / ".lock"):
        return read_result(job, folder) or _call_locked(job, own, folder)


def _call_locked(job: Job, own: Path, folder: Path) -> Result:
    began = time.perf_counter()
    try:
        value = _call_on_gpus(job, own) if job.gpus > 1 else call_function(job, own)
        if not isinstance(value, dict):
            raise UserTypeError(f"{job.function} returned a {type(value).__name__}; a job returns a dict")
        done = {"value": value, "seconds": round(time.perf_counter() - began, 3)}
        write_file(own / RESULT, json.dumps({**asdict(job), **done}, indent=1).encode())
    except (Exception, SystemExit) as error:
        write_file(own / FAILED, traceback.format_exc().encode())
        return Result(job.key, None, format_error(error), time.perf_counter() - began)
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # free it for other processes
    (own / FAILED).unlink(missing_ok=True)
    result = read_result(job, folder)
    assert result is not None
    return result


def _call_on_gpus(job: Job, own: Path) -> object:
    available = torch.cuda.device_count()
    if job.gpus > available:
        raise UserError(
            f"the job needs {count(job.gpus, 'GPU')} and has {available}; use fewer workers or a larger machine"
        )
    return run_ranks(job, own, int(job.gpus))


def _compare(before: object, now: object) -> str:
    """Return the first differences between two values made of dictionaries, as one phrase."""
    old, new = _flatten(before), _flatten(now)
    names = [name for name in {**old, **new} if old.get(name, "nothing") != new.get(name, "nothing")]
    shown = [f"{name} was {old.get(name, 'nothing')}, is {new.get(name, 'nothing')}" for name in names[:SHOWN]]
    return "; ".join(shown) + (f"; {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _flatten(value: object, path: str = "") -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        return {path: repr(value)[:60]}
    parts = [_flatten(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()]
    return {name: text for part in parts for name, text in part.items()}


def read_result(job: Job, folder: Path) -> Result | None:
    """Return the stored result of a job, or None.

    Raises:
        UserError: If the result under this key belongs to another function or other settings.
    """
    file = folder / job.key / RESULT
    try:
        stored = json.loads(file.read_bytes())
        value, seconds = stored["value"], stored["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    before = {"function": stored.get("function"), "settings": stored.get("settings")}
    now = {"function": job.function, "settings": json.loads(json.dumps(job.settings))}
    if before != now:
        raise UserError(f"{file} is the result of another job: {_compare(before, now)}; use another key or folder")
    return Result(job.key, value, seconds=seconds)


class InThisProcess:
    """Runs jobs in this process, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job: Job | None = None

    def free(self) -> bool:
        return self.job is None

    def fits(self, job: Job) -> bool:
        return self.job is None

    def start(self, job: Job) -> None:
        self.job = job

    def wait(self, seconds: float | None = None) -> list[Result]:
        assert self.job is not None
        job, self.job = self.job, None
        return [call(job, self.folder)]

    def close(self) -> None:
        pass


def call_function(job: Job, own: Path) -> object:
    """Call the function of a job and return its value."""
    module, name = job.function.split(":")
    function = getattr(importlib.import_module(module), name)
    with _isolate(job.key):
        return function(**job.settings, folder=own)


@contextmanager
def _isolate(key: str) -> Iterator[None]:
    """Make the result depend only on the job, not on where it runs.

    One thread for torch and for the BLAS of numpy and scikit-learn (more threads change the order of sums), flushed
    denormals, and random seeds derived from the job's key.
    """
    state, numpy_state = random.getstate(), np.random.get_state()
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4])
    try:
        with (
            threadpool_limits(limits=1),
            use_one_thread(),
            torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []),
        ):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # used by scikit-learn
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def format_error(error: BaseException) -> str:
    """Return an error as one line."""
    first = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a child process: this one's, with the same module path and one thread.

    PYTHONSAFEPATH keeps `python -m` from importing modules from the current folder, which may have been downloaded.
    """
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **more,
    }


def run_ranks(job: Job, own: Path, count: int) -> JSON:
    """Call the job's function in `count` processes and return the value of the first."""
    answer = own / ANSWER
    answer.unlink(missing_ok=True)
    (own / JOB).write_text(json.dumps(asdict(job)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    with (own / "ranks.txt").open("ab") as log:
        code = subprocess.call([*command, "-m", __name__, str(own)], stdout=log, stderr=log, env=child_environment())
    reply = json.loads(answer.read_bytes()) if answer.exists() else {}
    if code or "value" not in reply:
        raise RuntimeError(reply.get("failed") or f"torchrun ended with {code}; see {own / 'ranks.txt'}")
    return reply["value"]


def main(own: Path) -> None:
    """Run the job in one of the processes."""
    try:
        reply = {"value": call_function(Job(**json.loads((own / JOB).read_bytes())), own)}
    except Exception as error:
        with suppress(OSError):  # another process may have written it
            write_file(own / ANSWER, json.dumps({"failed": format_error(error)}).encode())
        raise
    if os.environ["RANK"] == "0":
        write_file(own / ANSWER, json.dumps(reply).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
