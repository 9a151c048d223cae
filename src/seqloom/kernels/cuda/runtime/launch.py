"""Launching kernels of our own on a GPU: through the driver, on torch's current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels.cuda.runtime import nvrtc

MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
OLDEST = (8, 0)  # Ampere: bf16 products, and copies in the background


@dataclass(frozen=True)
class Code:
    """A kernel's text and the settings that it is compiled with."""

    name: str
    files: tuple[str, ...]
    settings: tuple[tuple[str, int], ...]
    threads: int
    shared: int  # bytes

    @property
    def attributes(self) -> tuple[tuple[int, int], ...]:
        """What the driver is told of it, once."""
        return ((MAX_SHARED, self.shared),)

    def launch(self, arguments: ctypes.Structure, blocks: int, device: torch.device) -> None:
        here = torch._C._cuda_getDevice()
        index = here if device.index is None else device.index
        kernel = self._loaded.get(index)
        if kernel is None or index != here:
            with torch.cuda.device(index):
                kernel = self._loaded.setdefault(index, _load(self, index))
                self._launch(kernel, arguments, blocks)
        else:
            self._launch(kernel, arguments, blocks)

    def _launch(self, kernel: ctypes.c_void_p, arguments: ctypes.Structure, blocks: int) -> None:
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()))
        _ask("cuLaunchKernel", kernel, blocks, 1, 1, self.threads, 1, 1, self.shared, stream, parameters, None)

    @cached_property
    def _loaded(self) -> dict[int, ctypes.c_void_p]:
        """The kernel on each device where it has run."""
        return {}


def why_not(device: torch.device) -> str | None:
    """Why kernels of our own cannot run there."""
    return _why_not(device.index if device.index is not None else torch.cuda.current_device())


@cache
def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def _why_not(index: int) -> str | None:
    if torch.version.hip:
        return "it is for NVIDIA GPUs"
    if torch.cuda.get_device_capability(index) < OLDEST:
        return f"it needs an NVIDIA GPU of the Ampere generation or later, {torch.cuda.get_device_name(index)} is older"
    try:
        nvrtc.version()
        _driver()
    except (OSError, RuntimeError) as error:
        return f"the compiler of torch's CUDA packages cannot be used: {error}"
    return None


def _load(code: Code, index: int) -> ctypes.c_void_p:
    """On this device, which is the current one."""
    torch.empty(1, device=f"cuda:{index}")  # before anything is on a device, it has no context
    major, minor = torch.cuda.get_device_capability(index)
    image = nvrtc.built(nvrtc.source(code.files), dict(code.settings), f"sm_{major}{minor}")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _ask("cuModuleLoadData", ctypes.byref(module), image)
    _ask("cuModuleGetFunction", ctypes.byref(function), module, code.name.encode())
    for name, value in code.attributes:
        _ask("cuFuncSetAttribute", function, name, value)
    return function


def pointers(kind: type[ctypes.Structure], given: Mapping[str, Any]) -> ctypes.Structure:
    """A record of arguments from what it needs of these: a tensor as its address, nothing as null."""
    told = {n: v.data_ptr() if isinstance(v, Tensor) else v for n in _names(kind) if (v := given.get(n)) is not None}
    return kind(**told)


@cache
def _names(kind: type[ctypes.Structure]) -> tuple[str, ...]:
    return tuple(name for name, *_ in kind._fields_)


def record(name: str, fields: Sequence[str | tuple[str, type]]) -> type[ctypes.Structure]:
    """A structure of C: bare names are pointers."""
    kinds = [(f, ctypes.c_void_p) if isinstance(f, str) else f for f in fields]
    return type(name, (ctypes.Structure,), {"_fields_": kinds})


def _ask(name: str, *arguments: object) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} (code {code})")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
