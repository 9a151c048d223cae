import sys
from pathlib import Path

import pytest

from seqloom.compiler import compile as compiling
from seqloom.compiler import storage

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "kernels" / "emulation"))


@pytest.fixture
def emulated(request, monkeypatch):
    """Run CUDA kernels on the CPU, as on a GPU with the test module's `MULTIPROCESSORS`."""
    import emulator

    from seqloom.kernels.cuda.runtime import launch

    if emulator.COMPILER is None:
        pytest.skip("no g++ to compile the kernels' text with")
    monkeypatch.setattr(launch.CudaCode, "launch", emulator.launch)
    monkeypatch.setattr(launch, "multiprocessors", lambda _: getattr(request.module, "MULTIPROCESSORS", 132))


@pytest.fixture
def forget():
    """Empty this process's memory of plans before and after a test; return a function that does so in between."""

    def clear():
        compiling._plans.clear()
        storage._discarded.clear()

    clear()
    yield clear
    clear()
