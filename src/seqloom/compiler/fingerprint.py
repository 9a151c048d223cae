"""What a compiled cell depends on besides its tensors: classes, settings and source files.

A setting such as `self.alpha = 0.5` is frozen in a trace. It is part of the fingerprint, so a cell whose settings
change is traced again. What a step reads elsewhere is in `guards.py`.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import operator
import sys
import types
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from seqloom.compiler.texts import write
from seqloom.compiler.values import HOOKS, PLAIN, SKIPPED, SKIPPED_OF_CLASS, freeze, list_user_classes
from seqloom.core.cell import Cell

_SIMPLE = frozenset({bool, int, str, type(None)})

Key = tuple[object, ...]


def fingerprint(cell: Cell) -> Key:
    """Return what a trace of a cell depends on, as a key within this process. Runs in every call of a layer."""
    key: list[object] = [torch.get_default_dtype()]  # type of tensors that a step creates
    if torch._C._len_torch_function_stack():
        key.append(torch.get_default_device())
    _collect("", cell, key)
    return tuple(key)


def _collect(path: str, module: nn.Module, key: list[object]) -> None:
    own, kind = module.__dict__, type(module)
    key += (path, kind, _find_state(kind))
    for name, v in own.items():
        if name in SKIPPED:
            continue
        has_type = type(v)
        if has_type in _SIMPLE or (has_type is float and v):
            key += (name, has_type, v)
        elif not isinstance(v, Tensor):
            key += (name, freeze(v))
        else:
            key += (name, v.shape, v.dtype)
    for group in (own["_parameters"], own["_buffers"]):
        for name, t in group.items():
            key += (name, None) if t is None else (name, t.shape, t.dtype)
    if own["_buffers"]:
        key += (t.requires_grad for t in own["_buffers"].values() if t is not None)
    names = own.get("_names")
    if names:
        key += names
    if any(own[hooks] for hooks in HOOKS):
        key.append("hooks")
    for name, child in own["_modules"].items():
        if child is not None:
            _collect(f"{path}.{name}", child, key)


Items = tuple[dict[str, Any], dict[str, object]]


class Snapshot:
    """Every object that `fingerprint` reads from a cell, compared by identity: faster, and at least as strict.

    Args:
        cell: The cell whose fingerprint was just taken.

    Attributes:
        dictionaries: The dictionaries of modules and classes that must keep their items, with these items.
    """

    def __init__(self, cell: Cell) -> None:
        self.dtype = torch.get_default_dtype()
        self.dictionaries: list[Items] = []
        self.kinds: list[tuple[nn.Module, type, tuple[type, ...]]] = []
        self.functions: list[tuple[types.FunctionType, object, object]] = []
        self.parameters: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self.is_possible = not torch._C._len_torch_function_stack() and self._add(cell)
        self.forms, self.buffer_forms = _read_forms(self.parameters), _read_forms(self.buffers)

    def _add(self, module: nn.Module) -> bool:
        """Add a module and its submodules; return False if a value may change while it stays the same object."""
        own, kind = module.__dict__, type(module)
        state, _ = _states[kind]
        if not state.is_constant or any(type(v) not in PLAIN for name, v in own.items() if name not in SKIPPED):
            return False
        parts = [own, *(own[name] for name in ("_parameters", "_buffers", "_modules", *HOOKS))]
        parts += [own["_names"]] if "_names" in own else []
        parts += [gc.get_referents(names)[0] for names, _, _ in state.parts]  # not of a view, but of its dictionary
        self.dictionaries += [(part, dict(part)) for part in parts if isinstance(part, dict)]
        self.kinds.append((module, kind, kind.__mro__))
        self.functions += state.functions
        for known, name in ((self.parameters, "_parameters"), (self.buffers, "_buffers")):
            known += [t for t in own[name].values() if t is not None]
        if any(own[name] for name in HOOKS) or not all(isinstance(part, dict) for part in parts):
            return False
        return all(self._add(child) for child in own["_modules"].values() if child is not None)

    def holds(self) -> bool:
        """Return whether everything is unchanged; False if only `fingerprint` can tell."""
        if not self.is_possible:
            return False
        for now, items in self.dictionaries:
            if len(now) != len(items) or not all(map(operator.is_, now.values(), items.values())):
                return False
            if tuple(now) != tuple(items):
                return False
        return self.holds_beside() and _read_forms(self.parameters) == self.forms

    def holds_beside(self) -> bool:
        """Return whether all else is unchanged: not the items of `dictionaries`, nor the forms of parameters."""
        if torch._C._len_torch_function_stack() or torch.get_default_dtype() is not self.dtype:
            return False
        for module, kind, bases in self.kinds:
            if type(module) is not kind or kind.__mro__ is not bases:
                return False
        for f, code, defaults in self.functions:
            if f.__code__ is not code or f.__defaults__ is not defaults or f.__kwdefaults__ or f.__dict__:
                return False
        return not self.buffers or _read_forms(self.buffers) == self.buffer_forms


def _read_forms(tensors: list[Tensor]) -> list[object]:
    return [(t.shape, t.dtype, t.requires_grad) for t in tensors]


class _ClassState:
    """The attributes of a class and its bases, valid as long as they do not change."""

    def __init__(self, kind: type) -> None:
        self.mro = kind.__mro__
        self.parts = [(vars(c), tuple(vars(c)), tuple(vars(c).values())) for c in list_user_classes(kind)]
        values = [v for names, _, _ in self.parts for n, v in names.items() if n not in SKIPPED_OF_CLASS]
        functions = [f for v in values for f in _list_functions(v)]
        self.functions = [(f, f.__code__, f.__defaults__) for f in functions]
        self.is_constant = (
            all(type(v) in PLAIN or _is_fixed(v) or _list_functions(v) for v in values)
            and all(map(_is_constant, functions))
            and not list_user_classes(type(kind))
        )

    def is_current(self, kind: type) -> bool:
        """Return whether every attribute is the same object."""
        if kind.__mro__ is not self.mro:
            return False
        for names, keys, values in self.parts:
            if tuple(names) != keys or not all(map(operator.is_, names.values(), values)):
                return False
        for f, code, defaults in self.functions:
            if f.__code__ is not code or f.__defaults__ is not defaults or f.__kwdefaults__ or f.__dict__:
                return not self.is_constant
        return True


class _Version:
    """Stands for the attributes of a class at one time."""


MOST_CLASSES = 1024  # maximum number of classes whose attributes are cached
_states: dict[type, tuple[_ClassState, _Version]] = {}


def _find_state(kind: type) -> object:
    """Return something that equals a later result only if the attributes of a class are the same.

    Most classes have only numbers, strings and functions as attributes and are compared by the identity of these.
    """
    known = _states.get(kind)
    if known is None or not known[0].is_current(kind):
        while len(_states) >= MOST_CLASSES:
            _states.pop(next(iter(_states)))
        known = _states[kind] = _ClassState(kind), _Version()
    return known[1] if known[0].is_constant else freeze(kind)


def _list_functions(value: object) -> list[types.FunctionType]:
    """Return the functions of an attribute of a class if it consists only of functions."""
    parts: list[object] = [value]
    if type(value) in (staticmethod, classmethod):
        parts = [value.__func__]  # type: ignore[attr-defined]
    elif type(value) is property:
        parts = [f for f in (value.fget, value.fset, value.fdel) if f is not None]
    functions = [f for f in parts if isinstance(f, types.FunctionType)]
    return functions if len(functions) == len(parts) else []


def _is_constant(function: types.FunctionType) -> bool:
    """Return whether a function has no closure, no attributes, and no default values that can change."""
    if function.__closure__ is not None and function.__code__.co_freevars != ("__class__",):
        return False
    if function.__kwdefaults__ or function.__dict__:
        return False
    return function.__defaults__ is None or all(type(v) in PLAIN for v in function.__defaults__)


def _is_fixed(value: object) -> bool:
    """Return whether an attribute of a class cannot change while it is the same object."""
    if type(value) in (tuple, frozenset):
        return all(type(v) in PLAIN for v in value)  # type: ignore[attr-defined]
    return isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType))


def list_settings(cell: Cell) -> dict[str, object]:
    """Return every attribute of a cell and its modules by name, to detect changes; tensors by identity."""
    settings: dict[str, object] = {}
    for path, module in cell.named_modules():
        prefix = f"{path}." if path else ""
        for name, v in module.__dict__.items():
            if name not in SKIPPED:
                settings[prefix + name] = id(v) if isinstance(v, Tensor) else freeze(v)
    return settings


def why_not_now() -> str | None:
    """Return why no step can be replaced with a plan at this time; None if one can."""
    m = torch_module
    if (
        m._global_forward_hooks
        or m._global_forward_pre_hooks
        or m._global_backward_hooks
        or m._global_backward_pre_hooks
    ):
        return "torch has hooks of all modules, which a compiled step would not call"
    return None


def why_not_trace() -> str | None:
    """Return why no step can be traced at this time; None if one can."""
    if all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack()):
        return None
    return "a TorchFunctionMode is active, whose effects a plan would keep"


def why_not_frozen(cell: Cell) -> str | None:
    """Return why a trace cannot represent the cell; None if it can."""
    for path, module in cell.named_modules():
        if any(module.__dict__[hooks] for hooks in HOOKS):
            return f"{path or 'the cell'} has hooks, which a compiled step would not call"
    return None


def _tensors(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    for group in (module._parameters, module._buffers, module.__dict__):
        for name, t in group.items():
            if isinstance(t, Tensor):
                yield name, t


def describe(cell: Cell) -> str | None:
    """Return what a trace of a cell depends on as text that other processes can compare; None if that is not possible.

    The sources of the cell's classes are part of it. A class defined inside a function cannot be described as text: it
    may depend on the function's variables.
    """
    words = [str(torch.get_default_dtype())]
    for path, module in cell.named_modules():
        own = {k: v for k, v in module.__dict__.items() if k not in SKIPPED and not isinstance(v, Tensor)}
        settings = {name: write(v) for name, v in own.items()}
        sources = [_source_digest(kind) for kind in list_user_classes(type(module))]
        name = write(type(module))
        if name is None or None in settings.values() or None in sources:
            return None
        tensors = [(n, tuple(t.shape), t.dtype) for n, t in _tensors(module)]
        learned = [n for n, t in module._buffers.items() if t is not None and t.requires_grad]
        words.append(repr((path, name, sources, settings, tensors, learned)))
    return "\n".join(words)


def _source_digest(kind: type) -> str | None:
    try:
        return digest_file(inspect.getfile(kind))
    except (TypeError, OSError):  # typed at a prompt
        return None


def digest_file(file: str) -> str | None:
    """Return a digest of a source file; None if it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None


@cache
def digest_compiler() -> str:
    """Return a digest of the compiler's source and the versions it depends on; plans with another one are not read."""
    here = Path(__file__).parent
    words = [file.read_bytes() for file in sorted((*here.glob("*.py"), here.parent / "core" / "job.py"))]
    return hashlib.sha256(f"{torch.__version__} {sys.version}".encode() + b"".join(words)).hexdigest()
