"""What this machine has, and whether every kernel works on it."""

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
ANY = "gru"  # the cell that stands for all where a kernel takes any
SLACK = 1e-6  # of the largest value: both may round differently by a few units
CUDNN = 2e-5  # its fused layers round more coarsely than that, in torch.nn as here

Run = Callable[[Cell, ScanJob], tuple[Tensor, State]]


def versions() -> dict[str, str | None]:
    """Of Python and the packages that results depend on; None where one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found | {"torch": torch.__version__}  # which also names its build: +cpu, +cu130


def hardware() -> dict[str, Any]:
    """The machine as torch sees it."""
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


# benchmarks/without_engine.py with AVX-512; its record is benchmarks/results/2026-11-16/avx512-without-engine.json
COST = "without it a GRU takes 2 to 10 times as long, AttnRNN 7 to 34, LN-GRU and LN-LSTM 4 to 14"


def engine() -> dict[str, str | None]:
    """Which build of the CPU engine this process uses, who compiled it, and what is wrong where there is none."""
    found = load_library()
    report = LIB / "build.json"
    built = json.loads(report.read_text()) if report.exists() else {}
    return {
        "library": None if isinstance(found, str) else Path(found._name).name,
        "compiler": built.get("compiler"),
        "problem": f"{found}; {COST}" if isinstance(found, str) else None,
    }


def _cpu_model() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


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
    """One kernel on one device."""

    kernel: str
    device: str
    why_not: str  # "" where it runs
    self_test: str  # "ok", "FAILED: ...", or "skipped: ..."
    distance: float | None = None  # from the float64 loop, relative; so is the next
    loop_distance: float | None = None  # of the float32 loop, which may be half of it

    @property
    def failed(self) -> bool:
        return self.self_test.startswith("FAILED")


def run_self_tests() -> list[Verdict]:
    """Every kernel on every kind of device there is."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [run_self_test(name, device) for name in (k.name for k in KERNELS) for device in devices]


def run_self_test(name: str, device: str) -> Verdict:
    """Whether a kernel runs a small float32 job here, and whether it is right."""
    kernel = find_kernel(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        cell = find_cell(ANY if kernel.cell == ANY_CELL else kernel.cell)(16, 32).to(device)
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
    """At most twice as far from the float64 loop as the float32 loop is, gradients too."""
    exact = _everything(any_loop.run, copy.deepcopy(cell).double().cpu(), x.double().cpu())
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            theirs = _distance(_everything(run, cell, x), exact)
            loop = _distance(_everything(any_loop.run, cell, x), exact)
    except Exception as error:
        return Verdict(name, device, "", f"FAILED: {error}")
    slack = CUDNN if device == "cuda" and find_kernel(name).uses_torch else SLACK
    close = theirs <= 2 * loop + slack  # False for NaN
    return Verdict(name, device, "", "ok" if close else f"FAILED: off by {theirs:.1e}", theirs, loop)


def _everything(run: Run, cell: Cell, x: Tensor) -> list[Tensor]:
    """Outputs, last state, and the gradients of the input and the weights."""
    x = x.detach().requires_grad_()
    y, state = run(cell, ScanJob(x, cell.start(x)))
    gradients = torch.autograd.grad((y * y).sum(), [x, *cell.parameters()])
    return [t.detach().double().cpu() for t in (y, *state, *gradients)]


def _distance(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest difference, relative to the largest value of each tensor."""
    return max(float((f - e).abs().max() / e.abs().max()) for f, e in zip(found, exact, strict=True))
