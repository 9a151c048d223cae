"""Load compiled kernels and launch them through the CUDA driver, on torch's current stream."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels.cuda.runtime import nvrtc

MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
OLDEST = (8, 0)  # Ampere: bf16 products and asynchronous copies
_Parameters = ctypes.c_void_p * 1  # parameters of a launch: the address of the struct of arguments
SCALARS = {"int": ctypes.c_int, "i64": ctypes.c_longlong}  # types of arguments other than pointers


@dataclass(frozen=True)
class CudaCode:
    """A kernel's source and the settings that it is compiled with."""

    name: str
    source: str  # the .cu file, with its folder
    macros: tuple[tuple[str, int | str], ...]
    threads: int
    shared: int  # bytes of shared memory per block
    rows: int = 1  # rows of the batch that these blocks process
    blocks: int = 1  # blocks that process the same rows
    text: str | None = field(default=None, kw_only=True)  # generated source; `source` is then a name for messages
    generation: str = field(default="", kw_only=True)  # "a": instructions only of this GPU's generation

    @property
    def attributes(self) -> tuple[tuple[int, int], ...]:
        """Attributes that the driver sets on the loaded function."""
        return ((MAX_SHARED, self.shared),)

    @property
    def arguments(self) -> type[ctypes.Structure]:
        """The struct of the kernel's arguments."""
        return read_arguments(self.source, self.name)

    def start(self, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
        """Launch as many blocks as a batch of B rows requires."""
        self.launch(arguments, self.blocks * -(-B // self.rows), device)

    def pack(self, values: Mapping[str, object]) -> ctypes.Structure:
        """Return the kernel's arguments, filled by name."""
        return pack(self.arguments, values)

    def launch(self, arguments: ctypes.Structure, blocks: int, device: torch.device) -> None:
        here = torch._C._cuda_getDevice()
        index = here if device.index is None else device.index
        kernel = self._loaded.get(index)
        if kernel is None or index != here:
            with torch.cuda.device(index):
                kernel = self._loaded.setdefault(index, _load(self, index))
                self._launch(kernel, arguments, blocks, index)
        else:
            self._launch(kernel, arguments, blocks, index)

    def _launch(self, kernel: ctypes.c_void_p, arguments: ctypes.Structure, blocks: int, index: int) -> None:
        parameters = _Parameters(ctypes.addressof(arguments))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(index))
        driver = _driver()
        code = driver.cuLaunchKernel(kernel, blocks, 1, 1, self.threads, 1, 1, self.shared, stream, parameters, None)
        if code:
            _raise_error("cuLaunchKernel", code)

    @cached_property
    def _loaded(self) -> dict[int, ctypes.c_void_p]:
        """The kernel on each device where it has run."""
        return {}


def why_not(device: torch.device) -> str | None:
    """Return why no CUDA kernel of this package can run on this device; None if they can."""
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


def _load(code: CudaCode, index: int) -> ctypes.c_void_p:
    """Load a kernel on this device, which must be the current one."""
    torch.empty(1, device=f"cuda:{index}")  # creates the device's context if there is none
    major, minor = torch.cuda.get_device_capability(index)
    image = nvrtc.build(code.source, dict(code.macros), f"sm_{major}{minor}{code.generation}", code.text)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), image)
    _call("cuModuleGetFunction", ctypes.byref(function), module, code.name.encode())
    for name, value in code.attributes:
        _call("cuFuncSetAttribute", function, name, value)
    return function


def pack(kind: type[ctypes.Structure], values: Mapping[str, object]) -> ctypes.Structure:
    """Fill a struct of arguments by name: a tensor gives its address, a mapping a nested struct, None is null."""
    arguments = kind()
    fill(arguments, values)
    return arguments


def fill(arguments: Any, values: Mapping[str, object]) -> None:  # noqa: ANN401  # a struct has any field
    """Set the fields of a struct for which a value is given, as `pack` does; None clears an address."""
    kind: type[ctypes.Structure] = type(arguments)
    for name in _list_given(kind, tuple(values)):
        value = values[name]
        if isinstance(value, Tensor):
            setattr(arguments, name, value.data_ptr())
        elif isinstance(value, dict):
            fill(getattr(arguments, name), value)
        else:
            setattr(arguments, name, value)


@cache
def _list_given(kind: type[ctypes.Structure], names: tuple[str, ...]) -> tuple[str, ...]:
    own = {name for name, _ in _list_fields(kind)}
    return tuple(name for name in names if name in own)


@cache
def _list_fields(kind: type[ctypes.Structure]) -> tuple[tuple[str, Any], ...]:
    bases = [base for base in reversed(kind.__mro__) if "_fields_" in vars(base)]
    return tuple((name, type_) for base in bases for name, type_ in vars(base)["_fields_"])


@cache
def read_arguments(source: str, kernel: str) -> type[ctypes.Structure]:
    """Return the argument struct of a kernel, as its source declares it: KERNEL(kernel, <struct>, ...)."""
    match = re.search(rf"KERNEL\(\s*{kernel},\s*(\w+),", nvrtc.read_source(source))
    assert match, f"{source} has no kernel {kernel}"
    return read_struct(source, match[1])


@cache
def read_struct(source: str, name: str, base: type[ctypes.Structure] | None = None) -> type[ctypes.Structure]:
    """Return a C struct as a ctypes structure, so that the C source is its only definition.

    It is declared in the file `source` or in arguments.cuh of the same folder; `base` is the struct that a template
    derives from. An array of pointers `keep[2]` becomes
    the fields keep_0 and keep_1; `from`, a word of Python, becomes from_.
    """
    folder = source.split("/", maxsplit=1)[0]
    text = nvrtc.read_source(source) + nvrtc.read_headers().get(f"{folder}/arguments.cuh", "")
    match = re.search(rf"struct {name}\s*(?:: (\w+) )?{{(.*?)\n?}};", re.sub(r"//.*", "", text), re.DOTALL)
    assert match, f"{source} has no struct {name}"
    fields: list[tuple[str, Any]] = []
    for type_, names in re.findall(r"(?:const )?(\w+)\s+(.*?);", match[2].replace("*", " *"), re.DOTALL):
        for pointer, member, size in re.findall(r"(\*?)\s*(\w+)(?:\[(\d+)\])?", names):
            kind = ctypes.c_void_p if pointer else SCALARS.get(type_) or read_struct(source, type_)
            several = [f"{member}_{i}" for i in range(int(size))] if size else [member]
            fields += [("from_" if n == "from" else n, kind) for n in several]
    base = base or (read_struct(source, match[1]) if match[1] else ctypes.Structure)
    return type(name, (base,), {"_fields_": fields})


def _call(name: str, *arguments: object) -> None:
    """Call a function of the driver; raise RuntimeError if it fails."""
    code = getattr(_driver(), name)(*arguments)
    if code:
        _raise_error(name, code)


def _raise_error(name: str, code: int) -> None:
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(text))
    raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} (code {code})")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
