"""Report the machine and its packages, and test every kernel on it."""

from __future__ import annotations

import copy
import json
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels import loop as any_loop
from seqloom.kernels import scan as any_scan
from seqloom.kernels.cpu.engine import LIB, load_library
from seqloom.kernels.registry import ANY as ANY_CELL
from seqloom.kernels.registry import KERNELS, find_kernel

PACKAGES = ("torch", "seqloom", "numpy", "scikit-learn", "onnxruntime")
COMPILERS = ("c++", "g++", "clang++", "cl")
SAMPLE_CELL = "gru"  # the cell with which kernels for any cell are tested
TOLERANCE = 1e-6  # relative to the largest value: rounding may differ by a few units
CUDNN_TOLERANCE = 2e-5  # cuDNN's fused layers round more coarsely, in torch.nn too

Run = Callable[[Cell, ScanJob], tuple[Tensor, State]]


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that results depend on; None if one is not installed."""
    packages: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            packages[package] = None
    return packages | {"torch": torch.__version__}  # with its build, such as +cpu or +cu130


def hardware() -> dict[str, Any]:
    """Return the operating system, processor, memory, GPUs and C++ compiler of this machine."""
    return {
        "os": platform.platform(),
        "cpu": _cpu_model(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "threads": torch.get_num_threads(),
        "gpus": [_gpu(i) for i in range(torch.cuda.device_count())],
        "cpp_compiler": next((path for name in COMPILERS if (path := shutil.which(name))), None),
    }


# research/speed/without_engine.py with AVX-512; its record is research/results/2026-11-16/avx512-without-engine.json
COST_WITHOUT_ENGINE = "without it a GRU takes 2 to 10 times as long, AttnRNN 7 to 34, LN-GRU and LN-LSTM 4 to 14"


def engine() -> dict[str, str | None]:
    """Return the build and compiler of the CPU engine in use, and the problem if there is none."""
    loaded = load_library()
    report = LIB / "build.json"
    build = json.loads(report.read_text()) if report.exists() else {}
    return {
        "library": None if isinstance(loaded, str) else Path(loaded._name).name,
        "compiler": build.get("compiler"),
        "problem": f"{loaded}; {COST_WITHOUT_ENGINE}" if isinstance(loaded, str) else None,
    }


def describe_facts() -> dict[str, str]:
    """Return versions, hardware and the CPU engine as text, by name."""
    machine, library = hardware(), engine()
    gpus = [f"{g['name']}, {g['memory_gib']} GiB, capability {g['capability']}" for g in machine["gpus"]]
    built = library["problem"] or f"{library['library']}, compiled by {library['compiler']}"
    facts = versions() | machine | {"gpus": "; ".join(gpus) or "none", "cpu engine": built}
    return {name.replace("_", " "): str(value) for name, value in facts.items()}


def print_report() -> int:
    """Print facts and self-tests as plain text, without the packages of the lab; return 1 if a kernel failed."""
    for name, value in describe_facts().items():
        print(f"{name:<14} {value}")
    verdicts = run_self_tests()
    for verdict in verdicts:
        print(f"{verdict.kernel:<20} {verdict.device:<5} {verdict.describe()}")
    return int(any(verdict.failed for verdict in verdicts))


def _cpu_model() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _gpu(index: int) -> dict[str, Any]:
    facts = torch.cuda.get_device_properties(index)
    return {
        "name": facts.name,
        "memory_gib": round(facts.total_memory / 2**30, 1),
        "capability": f"{facts.major}.{facts.minor}",
    }


@dataclass(frozen=True)
class Verdict:
    """The result of a kernel's self-test on one device."""

    kernel: str
    device: str
    why_not: str  # "" if it runs
    self_test: str  # "ok", "FAILED: ...", or "skipped: ..."
    distance: float | None = None  # largest difference from the float64 loop, relative to the largest value
    loop_distance: float | None = None  # the same for the float32 loop

    @property
    def failed(self) -> bool:
        return self.self_test.startswith("FAILED")

    def describe(self) -> str:
        """Return "ok", "FAILED: reason" or "skipped: reason"."""
        return f"{self.self_test.partition(':')[0]}: {self.why_not}" if self.why_not else self.self_test


def run_self_tests() -> list[Verdict]:
    """Run the self-tests of all kernels on the CPU, and on the GPU if there is one."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [run_self_test(name, device) for name in (k.name for k in KERNELS) for device in devices]


def run_self_test(name: str, device: str) -> Verdict:
    """Run a small float32 job with a kernel and compare the results with the reference loop."""
    kernel = find_kernel(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        cell = find_cell(SAMPLE_CELL if kernel.cell == ANY_CELL else kernel.cell)(16, 32).to(device)
        x = torch.randn(4, 12, 16).to(device)
    job = ScanJob(x, cell.start(x))
    try:
        reason = kernel.code.why_not(cell, job)
    except Exception as error:
        return Verdict(name, device, f"cannot be loaded: {error}", "FAILED: it cannot be loaded")
    if reason is not None:
        return Verdict(name, device, reason, "skipped: it does not run here")
    if name == "any_scan":
        return Verdict(name, device, any_scan.why_not_auto(cell, job) or "", "skipped: it would have to compile first")
    return _compare_with_loop(name, device, kernel.code.run, cell, x)


def _compare_with_loop(name: str, device: str, run: Run, cell: Cell, x: Tensor) -> Verdict:
    """Check that the errors of outputs and gradients against float64 are at most twice those of the float32 loop."""
    exact = _run_with_gradients(any_loop.run, copy.deepcopy(cell).double().cpu(), x.double().cpu())
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            theirs = _distance(_run_with_gradients(run, cell, x), exact)
            loop = _distance(_run_with_gradients(any_loop.run, cell, x), exact)
    except Exception as error:
        return Verdict(name, device, "", f"FAILED: {error}")
    tolerance = CUDNN_TOLERANCE if device == "cuda" and find_kernel(name).uses_torch else TOLERANCE
    close = theirs <= 2 * loop + tolerance  # False for NaN
    return Verdict(name, device, "", "ok" if close else f"FAILED: off by {theirs:.1e}", theirs, loop)


def _run_with_gradients(run: Run, cell: Cell, x: Tensor) -> list[Tensor]:
    """Return outputs, last state, and the gradients of the input and the weights."""
    x = x.detach().requires_grad_()
    y, state = run(cell, ScanJob(x, cell.start(x)))
    gradients = torch.autograd.grad((y * y).sum(), [x, *cell.parameters()])
    return [t.detach().double().cpu() for t in (y, *state, *gradients)]


def _distance(results: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest value of each tensor."""
    return max(float((r - e).abs().max() / e.abs().max()) for r, e in zip(results, exact, strict=True))
