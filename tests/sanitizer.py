"""Run the engine's tests, and the emulated CUDA text, under the sanitizers of g++, in three parts:

    engine      the engine under AddressSanitizer and UndefinedBehaviorSanitizer
    emulated    the emulated CUDA text under the same
    threads     the engine under ThreadSanitizer: threads inside of a call, threads of Python, forks

`make sanitize` compiles the engine anew, for this machine's instruction set, into a copy of the package in a temporary
folder; emulated text is kept in build/emulation. Before the tests each part checks that its sanitizer reports a planted
fault.
"""

import argparse
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from seqloom.kernels.cpu.engine import list_libraries

ROOT = Path(__file__).parents[1]
FLAGS = "-O1 -g1 -fno-omit-frame-pointer"
ADDRESS = f"{FLAGS} -fsanitize=address,undefined -fno-sanitize-recover=undefined"
THREAD = f"{FLAGS} -fsanitize=thread"
# By folder: tests that pass memory to the engine, in many shapes.
ENGINE_FILES = {
    "kernels": ("every_kernel", "cpu_threads", "bound_step", "cell_pass", "linear_kernels", "kept_memory"),
    "compiler": ("compiled", "compiled_layers", "function_rules", "machine", "prepared_calls", "storage", "validation"),
    "layers": (
        *("contract", "derivatives", "drop_in", "drop_in_cells", "drop_in_dropout", "dropouts", "formats"),
        *("linear_inputs", "linear_layers", "memory", "memory_safety", "parallel_chunks", "plans", "row_order"),
        *("stream", "stream_forward", "time", "wavefront"),
    ),
    "cells": ("every_cell",),
}
ENGINE_TESTS = tuple(f"{folder}/test_{name}.py" for folder, names in ENGINE_FILES.items() for name in names)
EMULATED_TESTS = (
    *(str(p.relative_to(ROOT / "tests")) for p in sorted(ROOT.glob("tests/kernels/test_*_emulated.py"))),
    *(f"compiler/test_{name}.py" for name in ("cuda_programs", "gated_text")),
)
THREAD_TESTS = ("kernels/test_cpu_threads.py", "conformance/test_torch_features.py", "conformance/test_processes.py")
THREAD_CHOICE = "(test_cpu_threads or eight_threads) and not slow and not long or a_fork_runs"
# An output for half of the elements: the engine writes past its end.
OVERFLOW = """
import torch, seqloom
from seqloom.kernels.cpu import prepared
prepared._empty_like = lambda like: like.new_empty(like.numel() // 2)
with torch.no_grad():
    seqloom.GRU(64, 64, kernel="gru_cpu")(torch.randn(50, 8, 64))
"""
# The same in a text that is compiled as emulated ones are.
EMULATED_OVERFLOW = """
import ctypes, sys
sys.path[:0] = sys.argv[1:2]
import emulator
place = sys.argv[2]
with open(f"{place}.cpp", "w") as file:
    file.write(emulator.EXPORT + "void write_past(int n) { volatile int* p = new int[n]; p[n] = 1; delete[] p; }")
emulator.compile_text(".", "-shared", f"{place}.cpp", "-o", f"{place}.so")
ctypes.CDLL(f"{place}.so").write_past(4)
"""
# The engine, and a function in which one thread reads what another has written, with and without a barrier between.
RACY_ENGINE = """
#include "engine.cpp"
EXPORT int pass_value(int waits) {
  int value = 0, seen = 0;
  run_threads(2, [&](const Team& team) {
    if (team.member == 0) value = 1;
    if (waits) team.wait();
    if (team.member == 1) seen = value;
  });
  return seen;
}
"""
RACE = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).pass_value(int(sys.argv[2]))"


def build_package(folder: Path, flags: str, source: str) -> Path:
    """Copy the package into a folder, with an engine that is checked while it runs; return the engine's path."""
    shutil.copytree(ROOT / "src" / "seqloom", folder / "seqloom", ignore=shutil.ignore_patterns("__pycache__", "lib"))
    build = runpy.run_path(str(ROOT / "csrc" / "engine_build.py"))
    isas = build["X86"] if build["is_x86"]() else build["ANY"]
    isa = list_libraries()[0].stem.removeprefix("engine_")
    library = folder / "seqloom" / "lib"
    library.mkdir()
    text, engine = folder / "checked_engine.cpp", library / f"engine_{isa}.so"
    text.write_text(source)
    words = ["g++", *build["FLAGS"], *build["POSIX"], *isas[isa], *shlex.split(flags), f"-I{ROOT / 'csrc'}"]
    subprocess.run([*words, str(text), "-o", str(engine)], check=True)
    shutil.copy(ROOT / "src" / "seqloom" / "lib" / "build.json", library)
    return engine


def find_runtime(name: str) -> str:
    """Return the path of a library of the compiler."""
    return subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()


def make_environment(folder: Path, package: Path, runtime: str) -> dict[str, str]:
    """Return the environment in which Python loads the sanitizer first, and the package of a folder."""
    return os.environ | {
        "PYTHONPATH": str(package),
        "LD_PRELOAD": f"{find_runtime(runtime)}:{find_runtime('libstdc++.so')}",  # for exceptions thrown by torch
        "ASAN_OPTIONS": "detect_leaks=0",  # Python and torch keep memory until the end
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "EMULATION_FLAGS": ADDRESS.replace("-O1 ", ""),
        # in files, as pytest keeps what a process prints; a fork of Python may start threads, too
        # memory that torch sets and frees is left out: torch is not compiled for it, so its atomics are not seen
        "TSAN_OPTIONS": f"log_path={folder / 'race'} die_after_fork=0 ignore_noninstrumented_modules=1",
    }


def run_tests(environment: dict[str, str], names: tuple[str, ...], *words: str) -> int:
    """Run tests; return pytest's exit code."""
    paths = [str(ROOT / "tests" / name) for name in names]
    command = [*_fix_addresses(), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, *paths]
    return subprocess.call(command, env=environment, cwd=ROOT)


def check_engine(folder: Path, jobs: int) -> int:
    """Run the engine's tests under AddressSanitizer and UndefinedBehaviorSanitizer; return the exit code."""
    build_package(folder, ADDRESS, '#include "engine.cpp"\n')
    return _check_addresses(make_environment(folder, folder, "libasan.so"), [OVERFLOW], ENGINE_TESTS, jobs)


def check_emulated(folder: Path, jobs: int) -> int:
    """Run the tests of emulated CUDA text under the same; return the exit code."""
    planted = [EMULATED_OVERFLOW, str(ROOT / "tests" / "kernels" / "emulation"), str(folder / "overflow")]
    environment = make_environment(folder, ROOT / "src", "libasan.so")
    return _check_addresses(environment, planted, EMULATED_TESTS, jobs)


def _check_addresses(environment: dict[str, str], planted: list[str], tests: tuple[str, ...], jobs: int) -> int:
    """Check that a planted fault is reported, then run tests; return the exit code."""
    fault = subprocess.run(
        [sys.executable, "-c", *planted], check=False, env=environment, stderr=subprocess.PIPE, text=True
    )
    if "heap-buffer-overflow" not in fault.stderr:
        print(f"the sanitizer did not report a planted fault:\n{fault.stderr}", file=sys.stderr)
        return 1
    return run_tests(environment, tests, "-n", str(jobs), "--dist", "loadfile", "-m", "not long")


def check_threads(folder: Path, _: int) -> int:
    """Run tests under ThreadSanitizer; return the exit code."""
    engine = build_package(folder, THREAD, RACY_ENGINE)
    # torch's own threads stay out of it: ThreadSanitizer does not know how OpenMP's wait for each other
    environment = make_environment(folder, folder, "libtsan.so") | {"OMP_NUM_THREADS": "1"}
    for waits, expected in ((1, False), (0, True)):
        command = [*_fix_addresses(), sys.executable, "-c", RACE, str(engine), str(waits)]
        subprocess.run(command, check=False, env=environment)
        reports = _take_reports(folder)
        if ("data race" in reports and "pass_value" in reports) is not expected:
            problem = "did not report a planted race" if expected else "reports a race where threads wait"
            print(f"the sanitizer {problem}:\n{reports}", file=sys.stderr)
            return 1
    failed = run_tests(environment, THREAD_TESTS, "-p", "no:xdist", "-k", THREAD_CHOICE)
    reports = _take_reports(folder)
    print(reports, file=sys.stderr, end="")
    return failed or int(bool(reports))


def _fix_addresses() -> list[str]:
    """Return what starts a command at fixed addresses, where that is allowed: g++ 12's runtime needs some of them."""
    words = ["setarch", "--addr-no-randomize"]
    allowed = shutil.which("setarch") and subprocess.run([*words, "true"], check=False, capture_output=True)
    return words if allowed and allowed.returncode == 0 else []


def _take_reports(folder: Path) -> str:
    """Return the reports of ThreadSanitizer so far, and delete them."""
    files = sorted(folder.glob("race.*"))
    text = "".join(file.read_text() for file in files)
    for file in files:
        file.unlink()
    return text


PARTS: dict[str, Callable[[Path, int], int]] = {
    "engine": check_engine,
    "emulated": check_emulated,
    "threads": check_threads,
}


def main() -> int:
    """Run the parts; return the exit code of the last one that failed, 0 if none did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="run one of the parts")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time; 0 runs them in the process of pytest")
    given = parser.parse_args()
    failed = 0
    for part in PARTS if given.only is None else (given.only,):
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="seqloom-sanitizer-") as name:
            code = PARTS[part](Path(name), given.jobs)
        failed = code or failed
        verdict = f"exit code {code}" if code else "no report"
        print(f"{part}: {verdict}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
