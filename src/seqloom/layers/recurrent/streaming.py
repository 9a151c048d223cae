"""A layer one step, or one chunk of steps, at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from seqloom.core.cell import State
from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError, UserTypeError
from seqloom.layers.layer import Layer


class Streaming(Layer):
    """What `Recurrent` has for streams. A step without gradients on the CPU is one call of the engine."""

    batch_first: bool = False

    def step(
        self, input: Tensor, hx: Tensor | State | None = None, *, timespans: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """One time step for streaming: (B, D) or (D,) -> y, state; equals the whole at once."""
        if timespans is None and not _compiling():
            done = _by_engine(self, self.__dict__, input, hx)
            if done is not None:
                return done
        if self.bidirectional:
            raise UserError("step: a bidirectional layer needs the whole sequence")
        if not isinstance(input, Tensor):
            raise UserTypeError(f"step takes a Tensor (B, D) or (D,), got a {type(input).__name__}")
        if input.dim() not in (1, 2):
            raise InputError(f"step takes (B, D) or (D,), got shape {tuple(input.shape)}")
        time = 1 if self.batch_first and input.dim() == 2 else 0
        spans = None if timespans is None else timespans.unsqueeze(time)
        y, state = self(input.unsqueeze(time), hx, timespans=spans)
        return y.squeeze(time), state

    def only_step(self, input: Any, hx: Tensor | State | None) -> tuple[Tensor, Any] | None:
        """A sequence of one step, as decoders have it, by the engine; None where `forward` should go on."""
        if type(input) is not Tensor or input.dim() not in (2, 3) or _gradients() or _compiling():
            return None
        time = 1 if self.batch_first and input.dim() == 3 else 0
        done = _by_engine(self, self.__dict__, input.squeeze(time), hx) if input.shape[time] == 1 else None
        return None if done is None else (done[0].unsqueeze(time), done[1])

    def select(self, state: Any, rows: Tensor) -> Any:
        """Return the state of these rows of the batch, in their order; a row may come twice."""
        if isinstance(state, Tensor):
            return state.index_select(1, rows)
        return tuple(s.index_select(1, rows) for s in state)

    def chunks(
        self,
        input: Tensor,
        size: int,
        hx: Tensor | State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        **aside: Tensor,
    ) -> Iterator[tuple[Tensor, Any]]:
        """Truncated back-propagation: y and state chunk by chunk, the carried state detached.

        `aside` is what else `forward` takes along the time: reset, timespans.
        """
        if self.bidirectional:
            raise UserError("chunks: a bidirectional layer needs the whole sequence")
        if not isinstance(input, Tensor):
            raise UserTypeError(
                f"chunks: input must be a Tensor, with lengths= for padding, got a {type(input).__name__}"
            )
        if size < 1:
            raise UserError(f"size must be at least 1 step, got {size}")
        time = 1 if self.batch_first and input.dim() == 3 else 0
        if lengths is not None:
            rows = input.shape[1 - time] if input.dim() == 3 else 1
            lengths = read_lengths(lengths, rows, input.shape[time], input.device)
        for start in range(0, input.shape[time], size):
            length = min(size, input.shape[time] - start)
            left = None if lengths is None else (lengths - start).clamp(0, length)
            parts = {name: t.narrow(time, start, length) for name, t in aside.items()}
            y, hx = self(input.narrow(time, start, length), hx, left, **parts)
            yield y, hx
            hx = hx.detach() if isinstance(hx, Tensor) else tuple(s.detach() for s in hx)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_stack"}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.__dict__.pop("_stack", None)  # it holds addresses and a type
        return super()._apply(fn, recurse)


def _by_engine(layer: Any, own: dict[str, Any], x: Tensor, hx: Any) -> tuple[Tensor, Any] | None:
    """A step by the engine, or None where `forward` has to do it, or to say what is wrong.

    `own` is the module's dictionary: at this speed every look-up counts. Weights may have been moved since the last
    step; that a cell has become another one is looked for where a stream begins.
    """
    if (
        type(x) is not Tensor
        or "forward" in own
        or own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or _global_forward_hooks
        or _global_forward_pre_hooks
        or _modes()  # and whatever else wants to see every operation, or changes it
        or _transforms()
        or forward_ad._current_level >= 0
        or _tracing() is not None
        or _autocast()
    ):
        return None
    asked, weights = _asked(own), own["_parameters"]
    stack: Any = own.get("_stack")
    try:
        moved = stack is None or stack.addresses != list(map(_address, weights.values()))
        if moved or stack.asked != asked or (hx is None and stack.has_changed(weights)):
            stack = own["_stack"] = _prepared(layer, asked)
        if stack.reason is not None or (_gradients() and _has_gradient(x, hx, weights)):
            return None
        run = stack.by_shape.get(x.shape) or stack.add(x.shape)
        return run(x, stack.start(x) if hx is None else hx)
    except (AttributeError, RuntimeError, TypeError):  # a tensor without an address
        return None


_asked = itemgetter("kernel", "check", "training", "dropout", "dropouts")
_compiling, _gradients, _address = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled, Tensor.data_ptr
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_tracing, _autocast = torch._C._get_tracing_state, torch._C._is_any_autocast_enabled


def _prepared(layer: Any, asked: Any) -> Any:
    from seqloom.kernels.cpu.step import Stack

    return Stack(asked, tuple(layer.cells), layer._parameters, why_not_stream(layer))


def _has_gradient(x: Tensor, hx: Any, parameters: dict[str, Tensor]) -> bool:
    given = () if hx is None else (hx,) if isinstance(hx, Tensor) else hx
    return any(t.requires_grad for t in (x, *given, *parameters.values()))


def why_not_stream(layer: Any) -> str | None:
    """The reason why a step of this layer goes through `forward`; one with gradients always does."""
    from seqloom.kernels.cpu.step import why_not_step  # only streams need the engine's Python side
    from seqloom.layers.recurrent.layer import Recurrent

    kind, name, noise = type(layer), layer.cells[0].name, layer.dropouts
    if layer.bidirectional:
        return "a bidirectional layer needs the whole sequence"
    if kind.forward is not Recurrent.forward or kind.run_with is not Recurrent.run_with or "forward" in vars(layer):
        return "the layer has a forward of its own"
    if layer.kernel not in ("auto", "cpu", f"{name}_cpu"):
        return f"kernel={layer.kernel!r} was asked for"
    if layer.check:
        return "check=True looks at the input"
    if noise.zoneout not in (0, (0, 0)):
        return "the engine's step has no zoneout"
    if layer.training and (noise.recurrent or noise.weight or (layer.dropout and layer.num_layers > 1)):
        return "the engine's step has no dropout"
    return next((reason for cell in layer.cells if (reason := why_not_step(cell, layer._parameters))), None)
