"""What a compiled cell depends on beside its tensors: classes, settings and source files.

A setting such as `self.alpha = 0.5` is frozen in a trace. It is part of the fingerprint, so a cell whose settings
change is traced again.
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from seqloom.compiler.nodes import UnsupportedError, is_internal
from seqloom.core.cell import Cell

_MODULE = frozenset(nn.Module().__dict__) - {"training"}
_CELL = frozenset({"handle", "learned_states", "_home", "_names", "_known", "_shapes"})
_SKIPPED = _MODULE | _CELL
_CLASS = frozenset({"registry", "takes", "name", "_abc_impl"})
_PLAIN = (bool, int, float, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
_PLAIN_TYPES = frozenset(_PLAIN)
_CONSTANT = (type, types.ModuleType, types.BuiltinFunctionType)  # compared by identity
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

MOST_PARTS = 10_000  # lists and objects inside one setting; comparing more would take longer than a short job

Key = tuple[object, ...]


def fingerprint(cell: Cell) -> Key:
    """Return what a trace of a cell depends on, for a dictionary of this process. Runs in every call of a layer."""
    key: list[object] = []
    _collect("", cell, key)
    return tuple(key)


def _collect(path: str, module: nn.Module, key: list[object]) -> None:
    own, kind = module.__dict__, type(module)
    key += (path, kind)
    for c in _user_classes(kind):
        for name, v in vars(c).items():
            if type(v) is types.FunctionType:
                key.append(v if _is_constant(v) else freeze(v))
            elif name not in _CLASS and not name.startswith("__"):
                key += (name, freeze(v))
    for name, v in own.items():
        if name in _SKIPPED:
            continue
        if type(v) in _PLAIN_TYPES:
            key += (name, v)
        else:
            key += (name, freeze(v))
    for group in (own["_parameters"], own["_buffers"]):
        for name, t in group.items():
            key += (name, None) if t is None else (name, t.shape, t.dtype)
    key += (t.requires_grad for t in own["_buffers"].values() if t is not None)
    key += own.get("_names", ())
    key.append(any(own[hooks] for hooks in _HOOKS))
    for name, child in own["_modules"].items():
        if child is not None:
            _collect(f"{path}.{name}", child, key)


def list_settings(cell: Cell) -> dict[str, object]:
    """Return every attribute of a cell and its modules by name, to see whether one changes; tensors by identity."""
    settings: dict[str, object] = {}
    for path, module in cell.named_modules():
        prefix = f"{path}." if path else ""
        for name, v in module.__dict__.items():
            if name not in _SKIPPED:
                settings[prefix + name] = id(v) if isinstance(v, Tensor) else freeze(v)
    return settings


_classes: WeakKeyDictionary[type, tuple[ref[type], ...]] = WeakKeyDictionary()


def _user_classes(kind: type) -> tuple[type, ...]:
    """Return a class and its bases without torch's and the package's own."""
    classes = _classes.get(kind)
    if classes is None:
        classes = _classes[kind] = tuple(ref(c) for c in kind.__mro__ if not is_internal(inspect_file(c)))
    return tuple(c for r in classes if (c := r()) is not None)


def _class_settings(kind: type) -> list[tuple[str, object]]:
    """Return the methods and other attributes of a class."""
    return [
        (name, v)
        for name, v in vars(kind).items()
        if name not in _CLASS and (not name.startswith("__") or isinstance(v, types.FunctionType))
    ]


def why_not_frozen(cell: Cell) -> str | None:
    """Return why a trace cannot stand for the cell; None if it can."""
    for path, module in cell.named_modules():
        if any(module.__dict__[hooks] for hooks in _HOOKS):
            return f"{path or 'the cell'} has hooks, which a compiled step would not call"
    return None


def _tensors(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    for group in (module._parameters, module._buffers, module.__dict__):
        for name, t in group.items():
            if isinstance(t, Tensor):
                yield name, t


class _Same:
    """An object that is compared by identity, and kept alive so that its identity stays its own."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def freeze(value: object, seen: dict[int, int] | None = None) -> object:
    """Return something that equals a later freeze of the value only if the value is still the same.

    Args:
        value: The value. Of an object its attributes count too, of a function the variables of the function around it.
        seen: The numbers, by identity, of the objects that the value was found in or after.

    Raises:
        UnsupportedError: If the value has too many parts to compare them in every call.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.dtype
    if isinstance(value, _CONSTANT) or (type(value) is types.FunctionType and _is_constant(value)):
        return _Same(value)
    seen = {} if seen is None else seen
    if id(value) in seen:
        return _Same, seen[id(value)]
    seen[id(value)] = len(seen)
    if len(seen) > MOST_PARTS:
        raise UnsupportedError(f"a setting of the cell has more than {MOST_PARTS} parts, too many to watch for changes")
    if isinstance(value, (list, tuple)):
        return type(value), tuple([freeze(v, seen) for v in value])
    if isinstance(value, dict):
        return dict, tuple([(freeze(k, seen), freeze(v, seen)) for k, v in value.items()])
    if isinstance(value, (set, frozenset)):
        return type(value), tuple([freeze(v, seen) for v in value])
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return type(value), value.tobytes(), str(getattr(value, "dtype", "")), getattr(value, "shape", ())
    return _Same(value), tuple([freeze(part, seen) for part in _parts(value)])


def _is_constant(function: types.FunctionType) -> bool:
    """Return whether a function has no closure, and no default values that can change."""
    if function.__closure__ is not None or function.__kwdefaults__ is not None:
        return False
    return function.__defaults__ is None or all(type(v) in _PLAIN_TYPES for v in function.__defaults__)


def _parts(value: object) -> list[object]:
    """Return what an object or a function refers to and can be changed: attributes, closure and defaults."""
    if isinstance(value, types.FunctionType):
        return [value.__defaults__, value.__kwdefaults__, *_closure(value)]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    slots = [n for kind in type(value).__mro__ for n in kind.__dict__.get("__slots__", ()) if isinstance(n, str)]
    return [getattr(value, "__dict__", None), *(getattr(value, name, None) for name in slots)]


def _closure(function: types.FunctionType) -> list[object]:
    """Return the values of a function's closure, without the class that `super` needs."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return [_content(cell) for name, cell in zip(names, cells, strict=True) if name != "__class__"]


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def describe(cell: Cell) -> str | None:
    """Return what a trace of a cell depends on as text that other processes can compare; None if that is not possible.

    The sources of the cell's classes are part of it. A class that a function defined has no text: it may depend on the
    function's variables.
    """
    words = []
    for path, module in cell.named_modules():
        own = {k: v for k, v in module.__dict__.items() if k not in _SKIPPED and not isinstance(v, Tensor)}
        settings = {name: write(v) for name, v in own.items()}
        classes = _user_classes(type(module))
        shared = [(name, write(v)) for kind in classes for name, v in _class_settings(kind)]
        sources = [_source_digest(kind) for kind in classes]
        if None in settings.values() or None in sources or None in [text for _, text in shared]:
            return None
        name = f"{type(module).__module__}.{type(module).__qualname__}"
        tensors = [(n, tuple(t.shape), t.dtype) for n, t in _tensors(module)]
        learned = [n for n, t in module._buffers.items() if t is not None and t.requires_grad]
        words.append(repr((path, name, sources, shared, settings, tensors, learned)))
    return "\n".join(words)


def write(value: object) -> str | None:
    """Return a setting as text; None if no text stands for it."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        parts = [write(v) for v in value]
        return None if None in parts else f"{type(value).__name__}{parts}"
    if isinstance(value, dict):
        return write([(k, v) for k, v in value.items()])
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, property):
        return write([value.fget, value.fset, value.fdel])
    if isinstance(value, (staticmethod, classmethod)):
        return write(value.__func__)
    if isinstance(value, types.BuiltinFunctionType):
        return f"builtin {value.__name__}"
    if isinstance(value, (types.FunctionType, type)) and "<" not in value.__qualname__:
        parts = [] if isinstance(value, type) else [write(part) for part in _parts(value)]
        return None if None in parts else f"{value.__module__}.{value.__qualname__}{parts}"
    return None


def inspect_file(kind: type) -> str:
    """Return the file that defines a class; an empty text if there is none."""
    try:
        return inspect.getfile(kind)
    except (TypeError, OSError):
        return "<built-in>"


def _source_digest(kind: type) -> str | None:
    return digest_file(inspect_file(kind))


def digest_file(file: str) -> str | None:
    """Return a digest of a source file; None if it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None


@cache
def digest_compiler() -> str:
    """Return a digest of the compiler's own source, with the versions of its input: plans of others are not read."""
    here = Path(__file__).parent
    words = [file.read_bytes() for file in sorted((*here.glob("*.py"), here.parent / "core" / "job.py"))]
    return hashlib.sha256(torch.__version__.encode() + b"".join(words)).hexdigest()
