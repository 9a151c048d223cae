"""What a child process is given: the modules of its parent, one thread, a core and a share of the GPUs."""

from __future__ import annotations

import os
import sys


def environment(**more: str) -> dict[str, str]:
    """The parent's, with one thread, and where it finds modules its children do too."""
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}


def core(number: int, workers: int) -> int | None:
    """The core for the worker of this number; None where cores cannot be chosen, or are too few.

    The first one depends on the parent's number, so that two runners on a large machine rarely meet.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[(os.getpid() + number) % len(cores)] if workers <= len(cores) else None


def gpus(number: int, workers: int) -> str | None:
    """CUDA_VISIBLE_DEVICES for the worker of this number; None where there is no GPU."""
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        return None
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",")[:count] if named else [str(n) for n in range(count)]
    if workers > count:
        return names[number % count]
    return ",".join(names[number * count // workers : (number + 1) * count // workers])
