"""Compile the package's CUDA C++ when it is first needed, and cache the result on disk.

The compiler, NVRTC, comes with torch's CUDA packages: nvcc is not needed. It receives a .cu file and every header by
name (`#include "attn_rnn/block.cuh"`). The name of a cached build is a digest of the source, the macros, the GPU and
the compiler's version. The file is signed with the user's secret (core/cache.py); a file with a wrong signature is
rebuilt, with a warning.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from seqloom.core.cache import cache_folder, read_cached, write_cached

TEXT = Path(__file__).parents[1]  # names of .cu and .cuh files are relative to this folder
WHAT = "built kernel"  # in warnings


def folder() -> Path:
    """Return the folder of built kernels."""
    return cache_folder("kernels")


def read_source(name: str) -> str:
    """Return the source of a .cu or .cuh file, named with its folder."""
    return (TEXT / name).read_text()


@cache
def read_headers() -> dict[str, str]:
    """Return the source of every header by the name that #include lines use."""
    return {path.relative_to(TEXT).as_posix(): path.read_text() for path in sorted(TEXT.glob("*/*.cuh"))}


def build(name: str, macros: Mapping[str, int | str], architecture: str, text: str | None = None) -> bytes:
    """Return the cubin of a kernel, from the cache or compiled now.

    Args:
        name: The .cu file, with its folder; for generated source, a name for messages.
        macros: The macros to define.
        architecture: The GPU's, such as "sm_90".
        text: Generated source; None to read the file.
    """
    text = read_source(name) if text is None else text
    flags = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{k}={v}" for k, v in macros.items())]
    words = [text, *(word for header in read_headers().items() for word in header), *flags, str(version())]
    path = folder() / f"{hashlib.sha256(chr(0).join(words).encode()).hexdigest()}.cubin"
    code = read_cached(path, WHAT)
    if code is None:
        code = compile_source(name, text, flags)
        write_cached(path, code, WHAT)
    return code


def compile_source(name: str, text: str, flags: Sequence[str]) -> bytes:
    """Compile CUDA source to a cubin; the name is for messages.

    Raises:
        RuntimeError: If the source does not compile; the message includes NVRTC's log.
    """
    library, program, headers = compiler(), ctypes.c_void_p(), read_headers()
    texts, names = (
        (ctypes.c_char_p * len(headers))(*(t.encode() for t in part)) for part in (headers.values(), headers)
    )
    _call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), name.encode(), len(headers), texts, names)
    try:
        options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        if library.nvrtcCompileProgram(program, len(flags), options):
            raise RuntimeError(
                f"NVRTC refuses {name} ({' '.join(flags)}):\n{_read_part(program, 'ProgramLog').decode()}"
            )
        return _read_part(program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read_part(program: ctypes.c_void_p, name: str) -> bytes:
    size = ctypes.c_size_t()
    _call(f"nvrtcGet{name}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(f"nvrtcGet{name}", program, buffer)
    return buffer.raw


def _call(name: str, *arguments: object) -> None:
    code = getattr(compiler(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name} failed with code {code}")


@cache
def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


@cache
def compiler() -> ctypes.CDLL:
    """Return the NVRTC of torch's CUDA packages, or the system's.

    Raises:
        OSError: If there is none.
    """
    tried = []
    for name in _list_libraries():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            tried.append(str(error))
    raise OSError(f"no NVRTC found: {'; '.join(tried)}")


def _list_libraries() -> Iterator[str]:
    major = (torch.version.cuda or "0").split(".")[0]
    for base in (Path(torch.__file__).parent / "lib", *Path(torch.__file__).parents[1].glob("nvidia/*/lib")):
        yield from (str(path) for path in sorted(base.glob(f"libnvrtc.so.{major}*")))
    yield f"libnvrtc.so.{major}"
