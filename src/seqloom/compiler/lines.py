"""Lines of the user's code, for the operators of a trace and for error messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from seqloom.compiler.nodes import ROWS, UnsupportedError, is_internal
from seqloom.core.errors import UserError

MOST_CALLS = 1_000  # calls of torch in one step; a Neural Turing Machine has about 150
FOREIGN_TENSOR = "reads a tensor that is not an attribute of the cell"
# Properties that a traced tensor cannot know: the loop's tensors may require gradients or be on a GPU.
NUMBERS = frozenset({"tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage"})
UNKNOWN = frozenset({"data", "grad", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "requires_grad"})


class Lines(TorchFunctionMode):
    """Record the line of the user's code for every operator that it calls, and refuse what a trace would lose.

    Args:
        is_traced: Whether the code is traced; when it runs again to be watched, torch calls its functions.
    """

    def __init__(self, is_traced: bool = True) -> None:
        super().__init__()
        self.has_gradients = is_traced and torch.is_grad_enabled()
        self.is_inside = False
        self.calls = 0

    @contextmanager
    def enter_function(self) -> Iterator[None]:
        """Run the forward of an autograd.Function, which torch runs without gradients."""
        before, self.is_inside = self.is_inside, True
        try:
            with torch.no_grad():
                yield
        finally:
            self.is_inside = before

    def check_gradients(self, name: str) -> None:
        """Refuse a call without gradients in a step that has them."""
        if self.has_gradients and not torch.is_grad_enabled():
            place = _place(_find_frame(sys._getframe(1)))
            raise UnsupportedError(f"step calls {name} without gradients {place}; use detach() instead")

    @contextmanager
    def renew(self) -> Iterator[None]:
        """Record the lines of a backward, which runs without gradients."""
        with torch.no_grad(), fx.traceback.preserve_node_meta(), Lines():
            yield

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
        frame = _find_frame(frame)
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise UnsupportedError(f"step calls more than {MOST_CALLS} operators, which would take minutes to compile")
        place = _place(frame)
        name = getattr(func, "__name__", "")
        if name in NUMBERS:
            raise UnsupportedError(f"step reads numbers out of a tensor by {name} {place}, which may change")
        if is_unknown:
            raise UnsupportedError(f"step reads a tensor's attribute {attribute} {place}, which a trace does not have")
        if self.has_gradients and not self.is_inside and not torch.is_grad_enabled():
            raise UnsupportedError(f"step turns gradients off {place}; use detach() instead")
        fx.traceback.set_stack_trace([f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in step\n'])
        if func in _DROPOUTS:
            call: Callable[..., object] = _drop
            return call(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


_DROPOUTS = (F.dropout, torch.dropout)


def _drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **named: bool) -> Tensor:
    """Apply dropout by a factor: on a GPU torch draws it in another way than other random numbers."""
    training = named.get("train", training)
    if not training or not 0 < p < 1:
        return F.dropout(input, p, training, inplace)
    factor = torch.native_dropout(torch.ones_like(input), p, True)[0]
    return input.mul_(factor) if inplace else input * factor


def _find_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame of the user's code."""
    while frame.f_back is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _place(frame: FrameType) -> str:
    return f"({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


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
    place = ""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not is_internal(file) and file != "<string>":  # torch wraps traced code in such a function
            place = f" ({Path(file).name}:{step.tb_lineno})"
        step = step.tb_next
    return f"{function} {reason}{place}"
