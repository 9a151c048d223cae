"""Lines of the user's code, for the operators of a trace and for error messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from seqloom.compiler.nodes import ROWS, UnsupportedError, is_internal
from seqloom.core.errors import UserError

MOST_CALLS = 1_000  # calls of torch in one step; a Neural Turing Machine has about 150
FOREIGN_TENSOR = "reads a tensor that is not an attribute of the cell"
# Properties that a traced tensor cannot know: the loop's tensors may require gradients or be on a GPU.
NUMBERS = frozenset({"tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage"})
UNKNOWN = frozenset({"data", "grad", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "requires_grad"})


class Lines(TorchFunctionMode):
    """Record the line of the user's code for every operator that it calls, and refuse what a trace would lose."""

    def __init__(self) -> None:
        super().__init__()
        self.has_gradients = torch.is_grad_enabled()
        self.calls = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        frame = sys._getframe(1)
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        is_unknown = attribute in UNKNOWN and not is_internal(frame.f_code.co_filename)
        while frame.f_back is not None and is_internal(frame.f_code.co_filename):
            frame = frame.f_back
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise UnsupportedError(f"step calls more than {MOST_CALLS} operators, which would take minutes to compile")
        place = f"({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        name = getattr(func, "__name__", "")
        if name in NUMBERS:
            raise UnsupportedError(f"step reads numbers out of a tensor by {name} {place}, which may change")
        if is_unknown:
            raise UnsupportedError(f"step reads a tensor's attribute {attribute} {place}, which a trace does not have")
        if self.has_gradients and not torch.is_grad_enabled():
            raise UnsupportedError(f"step turns gradients off {place}; use detach() instead")
        fx.traceback.set_stack_trace([f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in step\n'])
        return func(*args, **(kwargs or {}))


def explain_failure(function: str, error: Exception) -> str:
    """Return why a function cannot be traced in one line, with the line of the user's code."""
    kind, text = type(error).__name__, str(error).strip().splitlines()
    first = text[0] if text else ""
    cause = first if isinstance(error, UserError) else f"{kind}: {first}".replace(str(ROWS), "B")
    reason = f"cannot be traced: {cause}"
    if "DataDependent" in kind:
        reason = "depends on the value of a tensor, by a branch or .item()"
    elif "convert all Tensors to FakeTensors" in reason:
        reason = FOREIGN_TENSOR
    elif "autograd.Function" in reason or "custom_function_call" in reason:
        reason = "calls an autograd.Function, whose backward a trace would lose"
    place = ""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not is_internal(file) and file != "<string>":  # torch wraps traced code in such a function
            place = f" ({Path(file).name}:{step.tb_lineno})"
        step = step.tb_next
    return f"{function} {reason}{place}"
