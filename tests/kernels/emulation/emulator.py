"""Run the source of CUDA kernels on the CPU: compile it as C++ with an emulation of the GPU's functions.

The folder runtime/ replaces the headers that kernels include for GPU instructions; it comes first on the include path.
A library is kept in build/emulation until a file of the kernels or of the emulation changes.
"""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

from seqloom.kernels.cuda.runtime import launch as _cuda
from seqloom.kernels.cuda.runtime import nvrtc

HERE = Path(__file__).parent
KEPT = HERE.parents[2] / "build" / "emulation"
KEPT_SECONDS = 7 * 24 * 3600  # a library that no test has loaded for a week is deleted
EXPORT = 'extern "C" __attribute__((visibility("default")))'
COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
# Hidden, or the next library would use the variables of this one.
SUFFIXES = (".cpp", ".hpp", ".cu", ".cuh")
FLAGS = ["-std=c++17", "-fPIC", "-ffp-contract=off", "-w", "-fvisibility=hidden", f"-I{HERE}"]
FLAGS += shlex.split(os.environ.get("EMULATION_FLAGS", ""))  # those of a sanitizer, for example
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


def launch(code: _cuda.CudaCode, arguments: ctypes.Structure, blocks: int, device: object, change=None) -> None:
    """Replace CudaCode.launch; `change` is a text that occurs once and its replacement, to plant a fault."""
    library = build(code.source, code.macros, change, code.text)
    assert getattr(library, f"bytes_{code.name}")() == code.shared
    assert getattr(library, f"arguments_{code.name}")() == ctypes.sizeof(arguments)
    run = getattr(library, f"emulate_{code.name}")
    run.restype, run.argtypes = ctypes.c_char_p, [ctypes.c_void_p, *[ctypes.c_int] * 5]
    error = run(ctypes.addressof(arguments), blocks, code.threads, code.shared, 1 + blocks, code.blocks)
    if error:
        raise RuntimeError(error.decode())


@cache
def build_runtime(name: str) -> Path:
    """Compile an emulation and its header (device, cluster, grid, bulk or clustered_grid), unless they are kept."""
    folder = KEPT / hashlib.sha256(repr([*digest_files(), name]).encode()).hexdigest()
    if folder.exists():
        os.utime(folder)
        return folder
    work = Path(tempfile.mkdtemp(dir=KEPT))
    (work / "emulation.hpp").write_text(f'#include "runtime/{name}.cuh"\n')
    words = ["-O2", "-U_FORTIFY_SOURCE", f"-I{nvrtc.TEXT}", "-c"]  # not fortified: fibers jump between stacks
    compile_text(work, *words, str(HERE / f"{name}.cpp"), "-o", "runtime.o")
    if "clang" not in str(COMPILER):  # clang would need the path of a precompiled header; it reads the text instead
        compile_text(work, "-O0", f"-I{nvrtc.TEXT}", "-x", "c++-header", "emulation.hpp", "-o", "emulation.hpp.gch")
    try:
        work.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(work)
    return folder


def compile_text(folder: str | Path, *words: str) -> str:
    """Run the compiler and return what it prints."""
    return subprocess.run(
        [str(COMPILER), *FLAGS, *words], check=True, cwd=folder, stdout=subprocess.PIPE, text=True
    ).stdout


@cache
def build(
    source: str, macros: tuple, change: tuple[str, str] | None = None, generated: str | None = None
) -> ctypes.CDLL:
    """Compile the kernels of a .cu file, or of generated text, unless they are kept from an earlier time."""
    words = [*digest_files(), source, repr(macros), repr(change), str(generated)]
    library = KEPT / f"{hashlib.sha256(repr(words).encode()).hexdigest()}.so"
    try:
        os.utime(library)
    except FileNotFoundError:
        compile_library(library, source, macros, change, generated)
    return ctypes.CDLL(str(library))


@cache
def digest_files() -> list[str]:
    """Return what all libraries depend on: compiler, flags and texts. Delete libraries that are out of use."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for file in KEPT.iterdir():
        if time.time() - file.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    texts = [file for folder in (HERE, nvrtc.TEXT) for file in folder.rglob("*") if file.suffix in SUFFIXES]
    files = sorted([*texts, Path(__file__)])
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return [compile_text(HERE, "--version"), platform.machine(), *FLAGS, *map(str, files), *digests]


def compile_library(
    library: Path, source: str, macros: tuple, change: tuple[str, str] | None, generated: str | None
) -> None:
    """Compile kernels into a file that appears complete."""
    settings = dict(macros)
    grid = "clustered_grid" if settings.get("CLUSTERED") else "bulk" if settings.get("BULK") else "grid"
    runtime = build_runtime(grid if settings.get("GRID") else "cluster" if "CLUSTER" in settings else "device")
    text = '#include "emulation.hpp"\n' + (f'#include "{source}"\n' if generated is None else generated)
    for name in re.findall(r"^(?:CLUSTER_)?KERNEL\((\w+),", generated or nvrtc.read_source(source), re.MULTILINE):
        shared = "CLUSTER" if name.startswith("attn_rnn_cluster") else name.removeprefix("attn_rnn_").upper()
        text += ENTRY.format(name, shared)
    defines = [f"-DEXPORT={EXPORT}", *(f"-D{name}={value}" for name, value in macros)]
    with tempfile.TemporaryDirectory(prefix="seqloom-emulation-") as folder:
        Path(folder, "kernel.cpp").write_text(text)
        include = [f"-I{runtime}", f"-I{nvrtc.TEXT}"]
        if change is not None:
            include.insert(1, f"-I{write_changed(folder, change, [*include, *defines])}")
        words = ["-O0", *include, "-shared", *defines]  # no optimisation: compiling is most of the time
        compile_text(folder, *words, "kernel.cpp", str(runtime / "runtime.o"), "-o", "kernel.so")
        work = library.with_suffix(f".{os.getpid()}")
        shutil.move(Path(folder, "kernel.so"), work)
        work.replace(library)


def read_code(path: Path) -> str:
    """Read a text without its comments behind `//`."""
    return re.sub(r"//.*", "", path.read_text())


def write_changed(folder: str, change: tuple[str, str], words: list[str]) -> Path:
    """Write the file that has the text to be changed, with the change, into a folder that comes first on the path.

    Comments, line breaks and indentation do not matter.
    """
    listed = compile_text(folder, "-MM", *words, "kernel.cpp").replace("\\\n", " ").split()
    texts = {path: read_code(path) for name in listed if (path := Path(name)).is_relative_to(nvrtc.TEXT)}
    pattern = r"\s+".join(map(re.escape, change[0].split()))
    everything = map(read_code, nvrtc.TEXT.glob("*/*.cu*"))
    assert any(re.search(pattern, text) for text in everything), f"no file has the text {change[0]!r}"
    count = sum(len(re.findall(pattern, text)) for text in texts.values())
    assert count <= 1, f"{change[0]!r} occurs {count} times"
    changed = Path(folder, "changed")
    changed.mkdir()
    for path, text in texts.items():
        if re.search(pattern, text):
            copy = changed / path.relative_to(nvrtc.TEXT)
            copy.parent.mkdir()
            copy.write_text(re.sub(pattern, lambda _: change[1], text))
    return changed
