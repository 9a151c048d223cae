"""Watch which code a step runs and what it reads: a plan is valid only while all of it is unchanged."""

from __future__ import annotations

import contextvars
import gc
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from seqloom.compiler import flags
from seqloom.compiler.guards import NO_GUARDS, Guards
from seqloom.compiler.nodes import UnsupportedError, is_internal
from seqloom.compiler.reads import find_places
from seqloom.compiler.values import hides_state, is_library
from seqloom.core.cell import Cell

Result = TypeVar("Result")
_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).parents[1])
# Files of torch that call modules and operators, and those that compute. Any other may answer a question about flags.
_CALLING = tuple(f"{_TORCH}/{name}" for name in ("nn/modules/module.py", "nn/parameter.py", "overrides.py", "fx/",
                                                 "utils/_", "_jit_internal.py", "_library/", "_ops.py"))  # fmt: skip
_COMPUTING = tuple(f"{_TORCH}/{name}" for name in ("nn/", "functional.py", "_tensor.py", "_VF.py", "special/",
                                                   "linalg/"))  # fmt: skip
_QUESTION = re.compile(r"get|is_|are_|has_|count|num_|current|seed|default|_cuda_|_mps_|_xpu_|memory")
_MACHINERY = re.compile(
    r"_has_torch_function|_get_tracing_state|_is_torch_function|_torch_function_mode|is_grad_enabled"
)
# Modules in C whose functions depend on their arguments only, except the names listed after them.
_PURE = frozenset({"builtins", "math", "cmath", "_operator", "itertools", "_functools", "functools", "_collections",
                   "_collections_abc", "_abc", "_sre", "_struct", "_weakref", "_warnings", "_bisect", "_heapq", "_json",
                   "_statistics", "_string", "_contextvars", "_typing", "collections", "unicodedata"})  # fmt: skip
_IMPURE = frozenset({"open", "input", "id", "hash", "exec", "eval", "compile", "breakpoint", "__import__"})
_VALUES = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, range, slice, bytearray, memoryview,
           deque, MappingProxyType, re.Pattern, re.Match, Tensor, torch.dtype, torch.device, contextvars.ContextVar,
           property, partial, BaseException, type(None), torch.finfo, torch.iinfo)  # fmt: skip
_ENVIRONMENT: Any = type(os.environ)
_READS_ONE = _ENVIRONMENT.__getitem__.__code__
_READS_ALL = {_ENVIRONMENT.__iter__.__code__, _ENVIRONMENT.__len__.__code__}


@dataclass(frozen=True)
class Seen:
    """What the user's code ran and read."""

    files: frozenset[str] = frozenset()
    guards: Guards = field(default=NO_GUARDS, compare=False)

    def __or__(self, other: Seen) -> Seen:
        """Return what either has run and read."""
        return Seen(self.files | other.files, Guards((*self.guards.places, *other.guards.places)))


@cache
def _role(file: str) -> str:
    """Return a file's origin: "own", "torch", "computing" (torch's too), "python", "library", "generated" or "user"."""
    if file == "<string>":
        return "generated"  # functions that dataclasses and named tuples make
    if file.startswith(_CALLING):
        return "library"
    if file.startswith(_TORCH):
        return "computing" if file.startswith(_COMPUTING) else "torch"
    if file.startswith(_PACKAGE) and is_internal(file):
        return "own"
    if not is_library(file):
        return "user"
    return "library" if "site-packages" in file or "dist-packages" in file else "python"


class Watcher:
    """Record the code that runs in a thread, and what it reads from Python, torch and the operating system.

    Attributes:
        files: The user's source files.
        codes: The user's code, and the code that torch computes with, each with its global and built-in names.
        environment: The variables of the environment that were read; "" stands for all of them.
        variables: The context variables that were read.
        has_flags: Whether a flag of torch was read.
        reason: Why the step cannot be watched; None if it can.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.codes: dict[tuple[CodeType, int], tuple[bool, Mapping[str, object], Mapping[str, object]]] = {}
        self.environment: set[str] = set()
        self.variables: list[contextvars.ContextVar[object]] = []
        self.has_flags = False
        self.reason: str | None = None

    def note(self, frame: FrameType, event: str, argument: Any) -> None:  # noqa: ANN401  # a function, or a result
        """Record one event of a profiler."""
        role = _role(frame.f_code.co_filename)
        if role in ("own", "library"):
            return
        if event == "c_call":
            self._note_function(frame, role, argument)
        elif event == "call":
            self._note_frame(frame, role)

    def _note_frame(self, frame: FrameType, role: str) -> None:
        code = frame.f_code
        if role == "user":
            self.files.add(code.co_filename)
        if role in ("user", "generated", "computing"):
            names = role != "computing", frame.f_globals, frame.f_builtins
            self.codes.setdefault((code, id(frame.f_globals)), names)
        if code is _READS_ONE and type(frame.f_locals.get("key")) is str:
            self.environment.add(frame.f_locals["key"])
        if code in _READS_ALL:
            self.environment.add("")

    def _note_function(self, frame: FrameType, role: str, function: Any) -> None:  # noqa: ANN401  # in C
        module, name = getattr(function, "__module__", None) or "", function.__name__
        if isinstance(function.__self__, contextvars.ContextVar):
            self.variables.append(function.__self__)
        if module in ("torch", "torch._C") and "_VariableFunctions" not in function.__qualname__:
            if name in flags.NAMES:
                self.has_flags = True
            elif not _MACHINERY.search(name) and (role == "user" or (role == "torch" and _QUESTION.search(name))):
                self._refuse(frame, f"torch's {name}")
        elif isinstance(function.__self__, torch.Generator):
            self._refuse(frame, f"{name} of a random generator")
        elif role not in ("torch", "computing") and _is_users(frame) and not _is_pure(function, module, role):
            self._refuse(frame, f"{module}.{name}" if module else function.__qualname__)

    def _refuse(self, frame: FrameType, name: str) -> None:
        at: FrameType | None = frame
        while at is not None and _role(at.f_code.co_filename) != "user":
            at = at.f_back
        place = f" ({Path(at.f_code.co_filename).name}:{at.f_lineno})" if at is not None else ""
        self.reason = self.reason or f"step calls {name}{place}, whose result may differ from call to call"


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame runs for the user's code, directly or through Python's library."""
    at: FrameType | None = frame
    while at is not None and _role(at.f_code.co_filename) == "python":
        at = at.f_back
    return at is not None and _role(at.f_code.co_filename) in ("user", "generated")


def _is_pure(function: Any, module: str, role: str) -> bool:  # noqa: ANN401  # in C
    owner, top = function.__self__, module.partition(".")[0]
    if module in _PURE:
        return role == "python" or function.__name__ not in _IMPURE
    if top in ("torch", "numpy", "einops"):
        return True
    if owner is None or module or isinstance(owner, type(sys)):
        return module == "_thread" and role == "python" and function.__name__ in ("allocate_lock", "get_ident")
    kind = owner if isinstance(owner, type) else type(owner)
    known = kind.__module__.partition(".")[0] in ("torch", "numpy", "_thread") or issubclass(kind, _VALUES)
    return known or (hasattr(kind, "__next__") and not hasattr(kind, "read")) or not hides_state(kind)


def watch(function: Callable[[], Result], cell: Cell) -> tuple[Result, Seen]:
    """Call a function twice, and return its result and what it ran and read.

    It runs in a thread of its own, since a thread has one profiler only, which may be the user's.

    Args:
        function: A step of the cell.
        cell: The cell; what it holds is part of its fingerprint.

    Raises:
        UnsupportedError: If the function reads something that cannot be compared, or changes what it reads.
    """
    watcher = Watcher()
    import_module("torch._dynamo")  # which torch imports when a mode is entered: 2 s, under a profiler 9 s

    def run(profiler: Callable[..., None] | None) -> Result:
        sys.setprofile(profiler)
        try:
            return function()
        finally:
            sys.setprofile(None)

    is_collecting = gc.isenabled()
    gc.disable()  # finalizers of other objects would run in the thread, and count as the step's
    try:
        with ThreadPoolExecutor(1) as pool:
            contexts = [contextvars.copy_context() for _ in range(2)]
            result = pool.submit(contexts[0].run, run, watcher.note).result()
            if watcher.reason is not None:
                raise UnsupportedError(watcher.reason)
            guards = Guards(find_places(watcher, cell))
            pool.submit(contexts[1].run, run, None).result()
    finally:
        if is_collecting:
            gc.enable()
    changed = guards.find_change()
    if changed is not None:
        raise UnsupportedError(f"step changes the global {changed}")
    return result, Seen(frozenset(watcher.files), guards)
