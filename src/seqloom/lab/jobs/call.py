"""How a job is run, wherever that is: one thread, numbers of its own, and its result kept."""

from __future__ import annotations

import hashlib
import importlib
import json
import random
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from threadpoolctl import threadpool_limits

from seqloom.core.errors import UserError, UserTypeError
from seqloom.lab.jobs.runner import Job, Result
from seqloom.lab.training.checkpoint import write_file
from seqloom.lab.training.cpu import use_one_thread

RESULT, FAILED = "result.json", "failed.txt"


def call(job: Job, folder: Path) -> Result:
    """Run a job in its folder and keep what it returned; an error becomes the reason of a failed result.

    No two processes are in one folder: one whose machine is given up as dead may live on for a while, and
    the job may be wanted twice. Who comes second waits, and takes the first one's result.
    """
    own = folder / job.key
    own.mkdir(parents=True, exist_ok=True)
    with FileLock(own / ".lock"):
        return kept(job, folder) or _called(job, own, folder)


def _called(job: Job, own: Path, folder: Path) -> Result:
    began = time.perf_counter()
    try:
        value = _several(job, own) if job.gpus > 1 else alone(job, own)
        if not isinstance(value, dict):
            raise UserTypeError(f"{job.function} returned a {type(value).__name__}; a job returns a dict")
        done = {"value": value, "seconds": round(time.perf_counter() - began, 3)}
        write_file(own / RESULT, json.dumps({**asdict(job), **done}, indent=1).encode())
    except (Exception, SystemExit) as error:
        write_file(own / FAILED, traceback.format_exc().encode())
        return Result(job.key, None, reason(error), time.perf_counter() - began)
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the next job may run in another process
    (own / FAILED).unlink(missing_ok=True)
    found = kept(job, folder)
    assert found is not None
    return found


def _several(job: Job, own: Path) -> Any:
    from seqloom.lab.jobs.ranks import together

    there = torch.cuda.device_count()
    if job.gpus > there:
        raise UserError(f"it needs {job.gpus:g} GPUs and has {there}; use fewer workers, or a larger machine")
    return together(job, own, int(job.gpus))


def alone(job: Job, own: Path) -> Any:
    """The bare call."""
    module, name = job.function.split(":")
    function = getattr(importlib.import_module(module), name)
    with _own_numbers(job.key):
        return function(**job.settings, folder=own)


@contextmanager
def _own_numbers(key: str) -> Iterator[None]:
    """Set all that results depend on beside the job itself, so that it does not matter where the job runs.

    One thread for torch and for the BLAS of numpy and scikit-learn (more of them add in another order), denormals
    flushed, and random numbers that depend on the job's key alone.
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
            np.random.seed(seed)  # scikit-learn draws from it
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def reason(error: BaseException) -> str:
    """An error in a line."""
    first = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def kept(job: Job, folder: Path) -> Result | None:
    """The result that is there; one of other settings under the same key is an error."""
    file = folder / job.key / RESULT
    try:
        found = json.loads(file.read_bytes())
        value, seconds = found["value"], found["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if (found.get("function"), found.get("settings")) != (job.function, json.loads(json.dumps(job.settings))):
        raise UserError(
            f"{file} is the result of {found.get('function')} with {found.get('settings')}, "
            f"not of {job.function} with {job.settings}; use another key or folder"
        )
    return Result(job.key, value, seconds=seconds)
