"""The environment of child processes."""

from __future__ import annotations

import os
import sys


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
