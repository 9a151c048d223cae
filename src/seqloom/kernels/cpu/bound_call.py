"""Find the plan of a repeated call of a layer in one call of the engine (csrc/bound_call.hpp).

The engine compares the layer's settings, cells and weights, the input and the states with those of earlier calls, on
any device. If torch or the engine lacks a function that this needs, the comparison is made in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from seqloom.kernels.cpu.bound_step import (
    EXTENSION_FUNCTIONS,
    PYTHON_FUNCTIONS,
    TORCH_FUNCTIONS,
    Settings,
    StepForm,
    StepKind,
    describe_form,
    describe_kind,
    load_interface,
)
from seqloom.kernels.cpu.engine import load_library

MOST_KINDS = 16  # kinds of calls of one layer; each is compared in turn
MOST_DIMENSIONS = 4  # maximum dimensions of a Form


class _BoundCell(ctypes.Structure):
    _fields_ = [("own", ctypes.c_void_p), ("items", ctypes.c_int64), ("settings", Settings)]


class _CallKind(ctypes.Structure):
    _fields_ = [("train", ctypes.c_int64), ("x", StepForm), ("h", StepForm * 2), ("call", ctypes.c_void_p)]


class _BoundLayer(ctypes.Structure):
    _fields_ = [
        *(("interface", ctypes.c_void_p), ("kind", StepKind)),
        *((name, ctypes.c_int64) for name in ("states", "weights", "cells", "modules")),
        *((name, ctypes.c_void_p) for name in ("addresses", "forms", "parameters")),
        ("settings", Settings),
        *(("each_cell", ctypes.c_void_p), ("calls", ctypes.c_void_p), ("count", ctypes.c_int64)),
    ]


@cache
def load_bind() -> tuple[Any, Any, Any] | None:
    """Return the engine's bind function, the table of functions and torch's C interface; None if one is missing."""
    interface, engine = load_interface(), load_library()
    if isinstance(interface, str) or isinstance(engine, str) or not hasattr(engine, "seqloom_bound_layer_size"):
        return None
    _, table, native = interface
    size = engine.seqloom_bound_layer_size
    size.restype = ctypes.c_int64
    first = len(PYTHON_FUNCTIONS) + len(TORCH_FUNCTIONS)
    has_functions = None not in table[first : first + len(EXTENSION_FUNCTIONS)]
    parts = ctypes.sizeof(_BoundCell) + ctypes.sizeof(_CallKind)
    if not has_functions or size() != ctypes.sizeof(_BoundLayer) + 1000 * parts:
        return None
    bind: Any = ctypes.PyDLL(engine._name).seqloom_bind_layer
    bind.restype, bind.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object]
    return bind, table, native


Known = TypeVar("Known")


class BoundLayer(Generic[Known]):
    """The kinds of calls of a layer, each with its known plan.

    `find(own, input, state)` takes the layer's `__dict__`, the input, and the state in torch's form or None. It returns
    what is known about such a call. It returns None if anything differs, even if the call would run in the same way: an
    input that is not contiguous, a different object equal to a setting, a tensor of a subclass, a mode that intercepts
    operations.

    Args:
        weights: All weights, contiguous and of one type: those in the layer's `_parameters`, then those of `modules`.
        settings: The layer's settings by their names in its `__dict__`.
        cells: The `__dict__` of each cell, and its settings.
        states: How many tensors a state has.
        modules: The `_parameters` of each module inside the cells.
    """

    find: Callable[[dict[str, Any], Any, Any], Known | None]

    def __init__(
        self,
        weights: Sequence[Tensor],
        settings: Mapping[str, object],
        cells: Sequence[tuple[dict[str, Any], Mapping[str, object]]],
        states: int,
        modules: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.known: dict[tuple[object, ...], Known] = {}
        loaded = load_bind()
        self.can_bind = loaded is not None and 1 <= states <= 2 and all(w.dim() <= MOST_DIMENSIONS for w in weights)
        if loaded is None or not self.can_bind:
            self.find = _find_nothing
            return
        bind, table, native = loaded
        addresses = (ctypes.c_uint64 * len(weights))(*(w.data_ptr() for w in weights))
        forms = (StepForm * len(weights))(*(describe_form(w.shape) for w in weights))
        own, values = Settings(settings), [Settings(each) for _, each in cells]
        records = (_BoundCell * len(cells))()
        for record, (each, _), known in zip(records, cells, values, strict=True):
            record.own, record.items, record.settings = id(each), len(each), known
        self.calls = (_CallKind * MOST_KINDS)()
        layer = self.layer = _BoundLayer(ctypes.addressof(table), describe_kind(native, weights[0]), states)
        layer.weights, layer.cells, layer.modules, layer.settings = len(weights), len(cells), len(modules), own
        layer.addresses, layer.forms = ctypes.addressof(addresses), ctypes.addressof(forms)
        parameters = (ctypes.c_void_p * len(modules))(*map(id, modules))
        layer.parameters = ctypes.addressof(parameters)
        layer.each_cell, layer.calls = ctypes.addressof(records), ctypes.addressof(self.calls)
        held = [*(each for each, _ in cells), *modules]
        alive = layer, table, addresses, forms, parameters, records, own, values, self.calls, held
        self.find = bind(ctypes.addressof(table), (ctypes.addressof(layer), *alive))

    def add(self, x: torch.Size, state_shapes: Sequence[torch.Size], train: bool, known: Known) -> None:
        """Register what `find` returns for calls of one kind.

        Args:
            x: The shape of the input.
            state_shapes: Of the states.
            train: Whether gradients are enabled and a weight, the input or a state needs one.
            known: What to return.
        """
        kind = (x, *state_shapes, train)
        if not self.can_bind or any(len(shape) > MOST_DIMENSIONS for shape in (x, *state_shapes)):
            return
        if kind in self.known:
            place = list(self.known).index(kind)
        elif (place := len(self.known)) < MOST_KINDS:
            call = self.calls[place]
            call.train, call.x, call.h = train, describe_form(x), (StepForm * 2)(*map(describe_form, state_shapes))
        else:
            return
        self.calls[place].call = id(known)  # before the object that it replaces is released
        self.known[kind] = known
        self.layer.count = len(self.known)


def _find_nothing(own: dict[str, Any], input: object, state: object) -> None:
    """Return None, so that the caller compares in Python."""
