"""Build the C++ engine with the package.

With SEQLOOM_BUILD_ENGINE=separate an editable installation does not: `make` compiles it at the same time.
"""

import os
import runpy
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
build_engine = runpy.run_path(str(ROOT / "csrc" / "engine_build.py"))["build_engine"]


class BuildWithEngine(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode and os.environ.get("SEQLOOM_BUILD_ENGINE") == "separate":
            return
        home = ROOT / "src" if self.editable_mode else Path(self.build_lib)
        build_engine(home / "seqloom" / "lib")


class BinaryDistribution(Distribution):
    """The engine is machine code, so the package goes to platlib and its wheel can become manylinux."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """Tag the wheel for any Python 3 on one kind of machine: the engine does not use Python's C API."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":
    setup(distclass=BinaryDistribution, cmdclass={"build_py": BuildWithEngine, "bdist_wheel": PlatformWheel})
