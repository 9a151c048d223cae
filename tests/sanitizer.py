"""Run the engine's tests, and the emulated CUDA text, under AddressSanitizer and UndefinedBehaviorSanitizer.

`make sanitize` compiles the engine a second time, for this machine's instruction set, into a copy of the package in a
temporary folder. Before the tests it checks that the sanitizer reports an output buffer that is half too small.
"""

import argparse
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from seqloom.kernels.cpu.engine import list_libraries

ROOT = Path(__file__).parents[1]
FLAGS = "-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
ENGINE_TESTS = (
    *(f"kernels/test_{name}.py" for name in ("every_kernel", "cpu_threads", "half")),
    "compiler",
    "layers",
    "cells",
)
EMULATED_TESTS = tuple(
    str(p.relative_to(ROOT / "tests")) for p in sorted(ROOT.glob("tests/kernels/test_*_emulated.py"))
)
# An output for half of the elements: the engine writes past its end.
FAULT = """
import torch, seqloom
from seqloom.kernels.cpu import scan
scan._Constants.allocate = lambda self, like, *shape: like.new_empty(torch.Size(shape).numel() // 2)
seqloom.GRU(64, 64, kernel="gru_cpu")(torch.randn(50, 8, 64))
"""


def build_package(folder: Path) -> None:
    """Copy the package into a folder, with an engine that is checked while it runs."""
    shutil.copytree(ROOT / "src" / "seqloom", folder / "seqloom", ignore=shutil.ignore_patterns("__pycache__", "lib"))
    build = runpy.run_path(str(ROOT / "csrc" / "engine_build.py"))
    isas = build["X86"] if build["is_x86"]() else build["ANY"]
    isa = list_libraries()[0].stem.removeprefix("engine_")
    library = folder / "seqloom" / "lib"
    library.mkdir()
    words = ["g++", *build["FLAGS"], *build["POSIX"], *isas[isa], *shlex.split(FLAGS)]
    subprocess.run([*words, str(ROOT / "csrc" / "engine.cpp"), "-o", str(library / f"engine_{isa}.so")], check=True)
    shutil.copy(ROOT / "src" / "seqloom" / "lib" / "build.json", library)


def find_runtime(name: str) -> str:
    """Return the path of a library of the compiler."""
    return subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()


def make_environment(folder: Path) -> dict[str, str]:
    """Return the environment in which Python loads the sanitizer first, and the copy of the package."""
    return os.environ | {
        "PYTHONPATH": str(folder),
        "LD_PRELOAD": f"{find_runtime('libasan.so')}:{find_runtime('libstdc++.so')}",  # for exceptions thrown by torch
        "ASAN_OPTIONS": "detect_leaks=0",  # Python and torch keep memory until the end
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "EMULATION_FLAGS": FLAGS.replace("-O1 ", ""),
    }


def main() -> int:
    """Build, check that a fault is found, and run the tests; return pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("engine", "emulated"), help="run one of the two parts")
    given = parser.parse_args()
    tests = {"engine": ENGINE_TESTS, "emulated": EMULATED_TESTS}
    chosen = [t for part, names in tests.items() if given.only in (None, part) for t in names]
    with tempfile.TemporaryDirectory(prefix="seqloom-sanitizer-") as name:
        folder = Path(name)
        build_package(folder)
        environment = make_environment(folder)
        fault = subprocess.run(
            [sys.executable, "-c", FAULT], check=False, env=environment, stderr=subprocess.PIPE, text=True
        )
        if "heap-buffer-overflow" not in fault.stderr:
            print(f"the sanitizer did not report a planted fault:\n{fault.stderr}", file=sys.stderr)
            return 1
        print("the sanitizer reports a planted fault; running the tests", file=sys.stderr, flush=True)
        paths = [str(ROOT / "tests" / t) for t in chosen]
        words = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", *paths]
        return subprocess.call([sys.executable, "-m", "pytest", *words], env=environment, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
