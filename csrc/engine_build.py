"""Compile the C++ engine: one library for each instruction set of the target machine.

Without a compiler, or where it fails, `build.json` says why; layers then run on torch's own operators. With
SEQLOOM_BUILD_ENGINE=required the build stops instead: published wheels set it. It needs Python alone, so that
`make` compiles the engine while pip installs the dependencies: `python csrc/engine_build.py src/seqloom/lib`.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
WINDOWS = sys.platform == "win32"
FLAGS = ["-std=c++17", "-O3", "-shared", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-fvisibility=hidden"]
POSIX = ["-fPIC", "-pthread"]
AVX512 = ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"]
X86 = {"avx512": ["-DVBYTES=64", *AVX512], "avx2": ["-DVBYTES=32", "-mavx2", "-mfma"], "default": ["-DVBYTES=16"]}
ANY = {"default": ["-DVBYTES=16"]}
# g++ for Windows misaligns 32-byte vectors on the stack (GCC bug 54412), and MSVC has no vector extension: clang alone.
COMPILERS = ("clang++",) if WINDOWS else ("g++", "clang++", "c++")
CURE = "install LLVM (clang++)" if WINDOWS else "install g++ or clang++"
SUFFIX = ".dll" if WINDOWS else ".so"


def target_flags() -> list[str]:
    """Return the flags that name the target architecture, where the build is for another one (macOS)."""
    return shlex.split(os.environ.get("ARCHFLAGS", ""))


def is_x86() -> bool:
    target = " ".join(target_flags()) or sysconfig.get_platform()
    return any(name in target for name in ("x86_64", "amd64"))


def find_compiler() -> list[str] | None:
    """Return the C++ compiler as a command: $CXX, or the first known one on the path."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    found = next((name for name in COMPILERS if shutil.which(name)), None)
    return [found] if found else None


def build_engine(folder: Path) -> None:
    """Write engine_<instruction set>.so (.dll) into the folder, and what was built in build.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("engine_*"), folder / "build.json"):
        old.unlink(missing_ok=True)
    compiler = find_compiler()
    report: dict[str, object] = {"compiler": compiler and shlex.join(compiler), "built": [], "failed": {}}
    if compiler is None:
        report["failed"] = {"all": f"no C++ compiler was found; {CURE}, then install seqloom again"}
    else:
        compile_all(compiler, folder, report)
    (folder / "build.json").write_text(json.dumps(report, indent=1) + "\n")
    if report["failed"] and os.environ.get("SEQLOOM_BUILD_ENGINE") == "required":
        raise SystemExit(f"SEQLOOM_BUILD_ENGINE=required, but the engine was not built: {report['failed']}")


def compile_all(compiler: list[str], folder: Path, report: dict[str, object]) -> None:
    """Compile all builds at the same time, and note in the report which succeeded."""
    running = {}
    for isa, flags in (X86 if is_x86() else ANY).items():
        target = folder / f"engine_{isa}{SUFFIX}"
        platform_flags = [] if WINDOWS else POSIX
        command = [*compiler, *target_flags(), *FLAGS, *platform_flags, *flags, str(HERE / "engine.cpp")]
        try:
            running[isa] = subprocess.Popen(
                [*command, "-o", str(target)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            report["failed"][isa] = f"{compiler[0]} cannot be started: {error.strerror}; {CURE}"
    for isa, process in running.items():
        _, messages = process.communicate()
        if process.returncode == 0:
            report["built"].append(isa)
            continue
        (folder / f"engine_{isa}{SUFFIX}").unlink(missing_ok=True)
        lines = messages.strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        report["failed"][isa] = f"{compiler[0]} failed: {first}"


if __name__ == "__main__":
    build_engine(Path(sys.argv[1]))
