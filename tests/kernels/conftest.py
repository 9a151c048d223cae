import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "emulation"))


@pytest.fixture
def emulated(request, monkeypatch):
    """Run CUDA kernels on the CPU, as on a GPU with the test module's `MULTIPROCESSORS`."""
    import emulator

    from seqloom.kernels.cuda.gated import scan
    from seqloom.kernels.cuda.runtime import groups, launch

    if emulator.COMPILER is None:
        pytest.skip("no g++ to compile the kernels' text with")
    scan.prepare.cache_clear()  # tests change sizes that a scan is prepared with
    monkeypatch.setattr(launch.CudaCode, "launch", emulator.launch)
    monkeypatch.setattr(launch, "multiprocessors", lambda _: getattr(request.module, "MULTIPROCESSORS", 132))
    monkeypatch.setattr(groups, "has_clusters", lambda _: True)
