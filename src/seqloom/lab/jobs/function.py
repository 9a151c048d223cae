"""Call the function of a job on one thread, with its own random seed."""

from __future__ import annotations

import hashlib
import importlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.jobs.job import Job


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
