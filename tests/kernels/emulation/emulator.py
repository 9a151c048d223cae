"""Runs the kernels' own text on the CPU: compiled as C++ with an emulation of what it says to the GPU."""

import atexit
import ctypes
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from seqloom.kernels.cuda.runtime import launch as _cuda
from seqloom.kernels.cuda.runtime import nvrtc

HERE = Path(__file__).parent
EXPORT = 'extern "C" __attribute__((visibility("default")))'
COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
# Hidden, or the next library would use the variables of this one.
FLAGS = ["-std=c++17", "-fPIC", "-ffp-contract=off", "-w", "-fvisibility=hidden"]
FLAGS += shlex.split(os.environ.get("EMULATION_FLAGS", ""))  # those of a sanitizer, for example
EMULATED = {"device.cuh": "emulate.hpp", "cluster.cuh": "cluster.hpp", "grid.cuh": "grid.hpp"}
ENTRY = """
template <class A> A arguments_of_{0}(void (*)(const A &));
typedef decltype(arguments_of_{0}({0})) Of_{0};
EXPORT const char *emulate_{0}(const void *arguments, int blocks, int threads, int shared, int seed, int cluster) {{
  gpu::body = [](const void *a) {{ {0}(*(const Of_{0} *)a); }};
  gpu::arguments = arguments;
  return gpu::run(blocks, threads, shared, seed, cluster);
}}
EXPORT int bytes_{0}() {{ return {1}_BYTES; }}
EXPORT int arguments_{0}() {{ return sizeof(Of_{0}); }}
"""


def launch(code: _cuda.Code, arguments: ctypes.Structure, blocks: int, device: object, change=None) -> None:
    """In place of Code.launch; `change` replaces a part of the text once, to see what a fault does."""
    text = nvrtc.source([name for name in code.files if name not in EMULATED])
    if change is not None and change[0] in text:
        assert text.count(change[0]) == 1, f"{change[0]!r} occurs {text.count(change[0])} times"
        text = text.replace(*change)
    made = library(text, code.settings, tuple(EMULATED[name] for name in code.files if name in EMULATED))
    assert getattr(made, f"bytes_{code.name}")() == code.shared
    assert getattr(made, f"arguments_{code.name}")() == ctypes.sizeof(arguments)
    run = getattr(made, f"emulate_{code.name}")
    run.restype, run.argtypes = ctypes.c_char_p, [ctypes.c_void_p, *[ctypes.c_int] * 5]
    error = run(ctypes.addressof(arguments), blocks, code.threads, code.shared, 1 + blocks, getattr(code, "cluster", 1))
    if error:
        raise RuntimeError(error.decode())


@cache
def runtime(headers: tuple[str, ...]) -> Path:
    """Compile once for this process what every kernel needs: the emulation itself, and the headers."""
    folder = Path(tempfile.mkdtemp(prefix="seqloom-emulation-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "emulation.hpp").write_text("".join(f'#include "{HERE / name}"\n' for name in headers))
    source = (HERE / headers[-1]).with_suffix(".cpp")  # which includes that of the headers before it
    compile_(folder, "-O2", "-U_FORTIFY_SOURCE", "-c", str(source), "-o", "runtime.o")  # fibers jump between stacks
    if "clang" not in str(COMPILER):  # clang wants to be told where they are; it reads the text instead
        compile_(folder, "-O0", "-x", "c++-header", "emulation.hpp", "-o", "emulation.hpp.gch")
    return folder


def compile_(folder: str | Path, *words: str) -> None:
    subprocess.run([str(COMPILER), *FLAGS, *words], check=True, cwd=folder)


@cache
def library(text: str, settings: tuple, headers: tuple[str, ...]) -> ctypes.CDLL:
    """The kernels of this text."""
    for name in re.findall(r"^(?:CLUSTER_)?KERNEL\((\w+),", text, re.MULTILINE):
        shared = "CLUSTER" if name.startswith("attn_rnn_cluster") else name.removeprefix("attn_rnn_").upper()
        text += ENTRY.format(name, shared)
    with tempfile.TemporaryDirectory(prefix="seqloom-emulation-") as folder:
        Path(folder, "kernel.cpp").write_text('#include "emulation.hpp"\n' + text)
        macros = [f"-DEXPORT={EXPORT}", *(f"-D{name}={value}" for name, value in settings)]
        made = runtime(headers)
        words = ["-O0", f"-I{made}", "-shared", *macros]  # no optimisation: compiling is most of the time
        compile_(folder, *words, "kernel.cpp", str(made / "runtime.o"), "-o", "kernel.so")
        return ctypes.CDLL(str(Path(folder, "kernel.so")))
