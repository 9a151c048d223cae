"""CUDA C++ kept as text in the package, compiled when it is first needed and kept on disk.

The compiler is NVRTC, which comes with torch's own CUDA packages: nobody needs nvcc. What it makes is kept under a name
made of the text, the settings, the GPU and the compiler, behind a checksum: a file that is not what was written is
built again, with a warning.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

TEXT = Path(__file__).parents[1]  # the folders with .cu and .cuh files
DIGEST = 32  # bytes of a checksum


def folder() -> Path:
    """Where built kernels are kept: SEQLOOM_CACHE, or the user's cache folder."""
    given = os.environ.get("SEQLOOM_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqloom"
    return base / "kernels"


def source(files: Sequence[str]) -> str:
    """Return the text of these files, in this order; each is named without its folder."""
    return "\n".join(next(TEXT.glob(f"*/{name}")).read_text() for name in files)


def built(text: str, settings: Mapping[str, int], architecture: str) -> bytes:
    """Machine code for this text: from disk, or compiled now."""
    flags = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{k}={v}" for k, v in settings.items())]
    words = "\0".join([text, *flags, str(version())])
    path = folder() / f"{hashlib.sha256(words.encode()).hexdigest()}.cubin"
    kept = _read(path)
    if kept is None:
        kept = compiled(text, flags)
        _write(path, kept)
    return kept


def _read(path: Path) -> bytes | None:
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        warnings.warn(f"the built kernel {path} cannot be read ({error}); building it again", stacklevel=4)
        return None
    if hashlib.sha256(whole[DIGEST:]).digest() != whole[:DIGEST]:
        warnings.warn(f"the built kernel {path} is damaged; building it again", stacklevel=4)
        return None
    return whole[DIGEST:]


def _write(path: Path, code: bytes) -> None:
    """To a name of its own first, so that no process reads half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(file.name).replace(path)
    except OSError as error:
        warnings.warn(
            f"a built kernel cannot be kept in {path.parent} ({error}); every process builds it anew. "
            "Set SEQLOOM_CACHE to a folder that can be written",
            stacklevel=4,
        )


def compiled(text: str, flags: Sequence[str]) -> bytes:
    library, program = compiler(), ctypes.c_void_p()
    _ask("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"seqloom.cu", 0, None, None)
    try:
        options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        if library.nvrtcCompileProgram(program, len(flags), options):
            raise RuntimeError(
                f"NVRTC refuses the kernel ({' '.join(flags)}):\n{_part(program, 'ProgramLog').decode()}"
            )
        return _part(program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _part(program: ctypes.c_void_p, name: str) -> bytes:
    size = ctypes.c_size_t()
    _ask(f"nvrtcGet{name}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _ask(f"nvrtcGet{name}", program, buffer)
    return buffer.raw


def _ask(name: str, *arguments: object) -> None:
    code = getattr(compiler(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name} failed with code {code}")


@cache
def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _ask("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


@cache
def compiler() -> ctypes.CDLL:
    """The NVRTC of torch's CUDA packages, or the system's; OSError where there is none."""
    tried = []
    for name in _names():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            tried.append(str(error))
    raise OSError(f"no NVRTC found: {'; '.join(tried)}")


def _names() -> Iterator[str]:
    major = (torch.version.cuda or "0").split(".")[0]
    for base in (Path(torch.__file__).parent / "lib", *Path(torch.__file__).parents[1].glob("nvidia/*/lib")):
        yield from (str(path) for path in sorted(base.glob(f"libnvrtc.so.{major}*")))
    yield f"libnvrtc.so.{major}"
