"""Builds the CPU engine with the package, a library for each instruction set. Without a compiler there is no engine."""

import platform
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"]
X86 = {
    "avx512": [
        "-DVBYTES=64",
        "-mavx512f",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512bw",
        "-mfma",
        "-mprefer-vector-width=512",
    ],
    "avx2": ["-DVBYTES=32", "-mavx2", "-mfma"],
    "default": ["-DVBYTES=16"],
}
BUILDS = X86 if platform.machine().lower() in ("x86_64", "amd64") else {"default": ["-DVBYTES=16"]}


class BuildWithEngine(build_py):
    def run(self) -> None:
        super().run()
        home = ROOT / "src" if self.editable_mode else Path(self.build_lib)
        build_engine(home / "seqloom" / "lib")


def build_engine(folder: Path) -> None:
    """Leaves engine_<isa>.so in the folder, or the reason why not in missing.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("engine_*.so"), folder / "missing.txt"):
        old.unlink(missing_ok=True)
    compiler = next((c for c in ("g++", "c++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        (folder / "missing.txt").write_text("no C++ compiler (g++, c++, clang++) was found when seqloom was installed")
        return
    building = {isa: _compile(compiler, flags, folder / f"engine_{isa}.so") for isa, flags in BUILDS.items()}
    for isa, process in building.items():  # all at the same time
        _, said = process.communicate()
        if process.returncode:
            (folder / f"engine_{isa}.so").unlink(missing_ok=True)
            reason = (said.strip().splitlines() or ["no reason given"])[0]
            (folder / "missing.txt").write_text(f"{compiler} could not build the engine for {isa}: {reason}")


def _compile(compiler: str, flags: list[str], target: Path) -> "subprocess.Popen[str]":
    command = [compiler, *FLAGS, *flags, str(ROOT / "csrc" / "engine.cpp"), "-o", str(target)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


class PlatformWheel(bdist_wheel):
    """For any Python, but for one kind of machine: the engine is machine code."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": BuildWithEngine, "bdist_wheel": PlatformWheel})
