"""A step of the engine as a Python function: its checks, its results and the step itself in one call of C.

ctypes and checks in Python take longer than a step of 100 units. Here the engine gets the addresses of functions of
Python's stable ABI and of torch's C API, so it is still linked to neither (docs/decisions/0006). If one of them is
missing, steps run through `step.py`.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from seqloom.kernels.cpu.engine import load_library

# Members of Interface in csrc/bound_step.hpp, in its order.
PYTHON_FUNCTIONS = (
    "PyCFunction_NewEx",
    "PyObject_Vectorcall",
    "PyDict_GetItemWithError",  # the keys are strings, whose lookup cannot fail
    "PyDict_Size",
    "PyDict_Next",
    "PyLong_AsLongLong",
    "PyLong_AsUnsignedLongLong",
    "PyCapsule_New",
    "PyCapsule_GetPointer",
    "PyTuple_Pack",
    "PyTuple_GetItem",
    "PyTuple_Size",
    "PyList_New",
    "PyList_SetItem",
    "PyList_GetItem",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
    "PyObject_Type",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
TORCH_FUNCTIONS = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_get_layout",
    "aoti_torch_get_storage_size",
    "aoti_torch_get_storage_offset",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_empty_strided",
    "aoti_torch_grad_mode_is_enabled",
)
# What C++ extensions of torch are linked to: tensors from and to Python without a call of Python, a new tensor without
# the dispatcher, and the modes. In the order of Interface; torch's libraries have them by their mangled names.
EXTENSION_FUNCTIONS = (
    "aoti_torch_new_uninitialized_tensor",
    "_ZN8pybind116detail11type_casterIN2at6TensorEvE4loadENS_6handleEb",  # type_caster<at::Tensor>::load
    "_Z16THPVariable_WrapRKN2at10TensorBaseE",  # THPVariable_Wrap(const TensorBase&)
    "_ZN2at6native6is_negERKNS_6TensorE",  # at::native::is_neg
    "_ZN2at6detail17empty_strided_cpuEN3c108ArrayRefIlEES3_NS1_10ScalarTypeEb",  # at::detail::empty_strided_cpu
    "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",  # c10::impl::TorchDispatchModeTLS::stack_len
    "_ZN5torch3jit6tracer15getTracingStateEv",  # torch::jit::tracer::getTracingState
    "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE",  # at::autocast::is_autocast_enabled
    "_ZNK3c1010TensorImpl13requires_gradEv",  # c10::TensorImpl::requires_grad
    "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",  # c10::impl::tls_is_dispatch_key_included
)
WRAP_NEW_TENSOR = "_Z16THPVariable_WrapON2at10TensorBaseE"  # THPVariable_Wrap(TensorBase&&), which not every torch has
# The dispatch keys that torch.func's transforms add; see torch._C._are_functorch_transforms_active.
TRANSFORM_KEYS = "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode"
OBJECTS = (
    *(None, True, False, Tensor, tuple),
    *("forward", "_forward_hooks", "_forward_pre_hooks", "_parameters", "_current_level"),
    *(_global_forward_hooks, _global_forward_pre_hooks, vars(forward_ad)),
    torch._C._len_torch_dispatch_stack,
    torch._C._are_functorch_transforms_active,
    torch._C._get_tracing_state,
    torch._C._is_any_autocast_enabled,
    Tensor.data_ptr,
    Tensor.is_neg,
    getattr(torch._C._aoti, "unsafe_alloc_void_ptr_from_tensor", None),
    getattr(torch._C._aoti, "alloc_tensors_by_stealing_from_void_ptrs", None),
)
FUNCTIONS = len(PYTHON_FUNCTIONS) + len(TORCH_FUNCTIONS) + len(EXTENSION_FUNCTIONS) + 1
Interface = ctypes.c_void_p * (FUNCTIONS + len(TRANSFORM_KEYS) + len(OBJECTS))
BoundStep = Callable[[dict[str, Any], Any, Any], tuple[Any, Any] | None]  # __dict__ of the layer, input, state


class StepForm(ctypes.Structure):
    """Form of csrc/bound_step.hpp: the sizes and strides of a tensor with at most four dimensions."""

    _fields_ = [("dimensions", ctypes.c_int64), ("sizes", ctypes.c_int64 * 4), ("strides", ctypes.c_int64 * 4)]


class StepKind(ctypes.Structure):
    """Kind of csrc/bound_step.hpp."""

    _fields_ = [(name, ctypes.c_int64) for name in ("type", "size", "layout", "device", "index")]


class Settings(ctypes.Structure):
    """Settings of csrc/bound_step.hpp; the objects live as long as the structure."""

    _fields_ = [("count", ctypes.c_int64), ("keys", ctypes.c_void_p), ("values", ctypes.c_void_p)]

    def __init__(self, settings: Mapping[str, object]) -> None:
        names, values = tuple(map(sys.intern, settings)), tuple(settings.values())
        keys, known = ((ctypes.c_void_p * len(names))(*map(id, part)) for part in (names, values))
        super().__init__(len(names), ctypes.addressof(keys), ctypes.addressof(known))
        self.alive = names, values, keys, known


class _BoundStep(ctypes.Structure):
    _fields_ = [
        *(("interface", ctypes.c_void_p), ("layers", ctypes.c_void_p)),
        *((name, ctypes.c_int64) for name in ("count", "rows", "states", "numbers")),
        ("kind", StepKind),
        *((name, StepForm) for name in ("x", "y", "h")),
        *(("weights", ctypes.c_int64), ("addresses", ctypes.c_void_p), ("settings", Settings)),
    ]


@cache
def load_interface() -> tuple[Any, Any, Any] | str:
    """Return the engine's bind function, the table of functions and torch's C interface, or why there is none."""
    engine = load_library()
    if isinstance(engine, str):
        return engine
    if sys.implementation.name != "cpython":
        return "it is for CPython"
    try:
        native = _load_torch()
        size = engine.seqloom_bound_step_size
        addresses = [_find(ctypes.pythonapi, name) for name in PYTHON_FUNCTIONS]
        addresses += [_find(native, name) for name in TORCH_FUNCTIONS]
        addresses += _find_extension_functions(native)
        bind = ctypes.PyDLL(engine._name).seqloom_bind_step
    except (AttributeError, OSError) as error:
        return f"this version of Python or torch lacks a function: {error}"
    if OBJECTS[-1] is None or OBJECTS[-2] is None:
        return "this version of torch does not pass tensors to C"
    size.restype = ctypes.c_int64
    if size() != 2 + ctypes.sizeof(Interface) + 1000 * ctypes.sizeof(_BoundStep):
        return "the CPU engine belongs to another version of seqloom; install it again"
    table = Interface(*addresses, *map(id, OBJECTS))
    bind.restype, bind.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object]
    return bind, table, native


def _find_extension_functions(native: ctypes.CDLL) -> list[int | None]:
    """Return the addresses of EXTENSION_FUNCTIONS, WRAP_NEW_TENSOR and the keys; none of them if one is missing."""
    try:
        libraries = native, _load_torch("c10"), _load_torch("torch_python")
        found = [_find(next(k for k in libraries if hasattr(k, name)), name) for name in EXTENSION_FUNCTIONS]
        wrap = _find(libraries[2], WRAP_NEW_TENSOR) if hasattr(libraries[2], WRAP_NEW_TENSOR) else None
        return [*found, wrap, *(int(getattr(torch._C.DispatchKey, key)) for key in TRANSFORM_KEYS)]
    except (AttributeError, OSError, StopIteration):
        return [None] * (len(EXTENSION_FUNCTIONS) + 1 + len(TRANSFORM_KEYS))


def _load_torch(name: str = "torch_cpu") -> ctypes.CDLL:
    """Return one of torch's libraries, which are already loaded."""
    folder = Path(torch.__file__).parent / "lib"
    names = (f"lib{name}.so", f"lib{name}.dylib", f"{name}.dll")
    return ctypes.CDLL(str(next((folder / n for n in names if (folder / n).exists()), folder / names[0])))


def _find(library: ctypes.CDLL, name: str) -> int | None:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def bind_step(
    records: ctypes.Array[Any],
    rows: int,
    x: Tensor,
    y: Tensor,
    states: Sequence[Tensor],
    home: Mapping[str, Tensor],
    settings: Mapping[str, object],
) -> BoundStep | None:
    """Return a function that runs a step; None if there is none.

    The function takes the layer's `__dict__`, the input and the state. It returns the output and the new state, or None
    if anything differs from when the function was made, or gradients are needed.

    Args:
        records: The layers of the stack, StepStruct each.
        rows: Rows of the batch.
        x: An input, contiguous.
        y: An output.
        states: The states, of one shape.
        home: All weights of the layer.
        settings: The layer's settings by their names in its `__dict__`.
    """
    interface = load_interface()
    if isinstance(interface, str):
        return None
    bind, table, native = interface
    addresses = (ctypes.c_uint64 * len(home))(*(w.data_ptr() for w in home.values()))
    step = _BoundStep(ctypes.addressof(table), ctypes.addressof(records), len(records), rows, len(states))
    step.numbers, step.kind = rows * sum(map(torch.numel, home.values())), describe_kind(native, x)
    step.x, step.y, step.h = (describe_form(t.shape) for t in (x, y, states[0]))
    step.weights, step.addresses, step.settings = len(home), ctypes.addressof(addresses), (own := Settings(settings))
    owner = ctypes.addressof(step), step, records, addresses, own
    bound: BoundStep = bind(ctypes.addressof(table), owner)
    return bound


def describe_form(shape: Sequence[int]) -> StepForm:
    """Return the form of a contiguous tensor."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return StepForm(len(shape), (ctypes.c_int64 * 4)(*shape), (ctypes.c_int64 * 4)(*strides))


def describe_kind(native: ctypes.CDLL, t: Tensor) -> StepKind:
    """Return the numbers by which torch's C functions name the type, layout and device of a strided tensor."""
    number_type = getattr(native, f"aoti_torch_dtype_{str(t.dtype).removeprefix('torch.')}")
    device = getattr(native, f"aoti_torch_device_type_{t.device.type}")
    return StepKind(number_type(), t.itemsize, native.aoti_torch_layout_strided(), device(), t.device.index or 0)
