"""One time step of a recurrent layer as a single call of the CPU engine."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from seqloom.kernels import heuristics

if TYPE_CHECKING:  # a cycle, and the engine's Python side, which only streams need
    from seqloom.core.cell import Cell, State
    from seqloom.kernels.cpu.step import CellStack
    from seqloom.layers.recurrent.layer import Recurrent


def try_engine_step(
    layer: Recurrent, own: dict[str, Any], x: Tensor, hx: Tensor | State | None, time: int | None = None
) -> tuple[Tensor, Tensor | State] | None:
    """Run a step on the engine; return None if `forward` has to do it, or has to raise the error.

    Weights are compared by address at every step. Whether a setting of a cell has changed is checked only at the start
    of a stream (hx is None).

    Args:
        layer: The layer.
        own: Its `__dict__`: at this speed every attribute look-up counts.
        x: (B, D) or (D,), or a sequence of one step; the output has the same form.
        hx: The state in torch's form; None at the start.
        time: The time dimension, if x is a sequence.
    """
    stack: Any = own.get("_stack")
    if (
        type(x) is not Tensor
        or "forward" in own
        or own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or _global_forward_hooks
        or _global_forward_pre_hooks
        or _dispatch_modes()  # these and the next intercept or change every operation
        or _transforms()
        or forward_ad._current_level >= 0
        or _tracing() is not None
        or _autocast()
    ):
        return None
    settings, weights = _settings(own), own["_parameters"]
    try:
        is_stale = stack is None or stack.addresses != list(map(_address, weights.values()))
        if is_stale or stack.layer_settings != settings or (hx is None and stack.has_changed(weights)):
            stack = own["_stack"] = _build_stack(layer, settings)
        if stack.reason is not None or (is_grad_enabled() and _has_gradient(x, hx, weights)):
            return None
        run = stack.find(x.shape, time)
        return run(x, stack.start(x, time) if hx is None else hx)
    except (AttributeError, RuntimeError, TypeError):  # a tensor without an address: `forward` takes or refuses it
        return None


def try_single_step(
    layer: Recurrent,
    own: dict[str, Any],
    x: object,
    hx: Tensor | State | None,
) -> tuple[Any, Any] | None:
    """Run a sequence of one step, as decoders pass it, on the engine; return None if that is not possible."""
    if type(x) is not Tensor or x.dim() not in (2, 3) or not x.is_cpu or is_grad_enabled() or is_compiling():
        return None
    time = 1 if own["batch_first"] and x.dim() == 3 else 0
    stack: Any = own.get("_stack")
    most = heuristics.STEP_MOST_GATED_ROWS if stack is None or hx is None else stack.most_rows
    if x.shape[time] != 1 or x.numel() > most * x.shape[-1]:
        return None
    return try_engine_step(layer, own, x, hx, time)


is_compiling, is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
SETTINGS = ("kernel", "check", "training", "dropout", "dropouts", "residual", "stack_norm")
_settings = itemgetter(*SETTINGS)
_address, _tracing = Tensor.data_ptr, torch._C._get_tracing_state
_dispatch_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_autocast = torch._C._is_any_autocast_enabled


def _build_stack(layer: Recurrent, settings: tuple[object, ...]) -> CellStack:
    from seqloom.kernels.cpu.step import CellStack

    return CellStack(
        dict(zip(SETTINGS, settings, strict=True)), _list_cells(layer), _own_weights(layer), why_not_stream(layer)
    )


def _list_cells(layer: Recurrent) -> list[Cell]:
    return [layer.cell_at(i) for i in range(len(layer.cells))]


def _own_weights(layer: Recurrent) -> dict[str, Tensor]:
    weights: dict[str, Any] = layer._parameters  # one may be None, which has no address
    return weights


def _has_gradient(x: Tensor, hx: Tensor | State | None, parameters: dict[str, Tensor]) -> bool:
    states = () if hx is None else (hx,) if isinstance(hx, Tensor) else hx
    return any(t.requires_grad for t in (x, *states, *parameters.values()))


def why_not_stream(layer: Recurrent) -> str | None:
    """Return why a step of this layer goes through `forward`; None if the engine runs steps without gradients."""
    from seqloom.kernels.cpu.step import why_not_step  # only streams need the engine's Python side
    from seqloom.layers.recurrent.layer import Recurrent

    kind, name, noise = type(layer), layer.cell_at(0).name, layer.dropouts
    if layer.bidirectional:
        return "a bidirectional layer needs the whole sequence"
    if kind.forward is not Recurrent.forward or kind.run_with is not Recurrent.run_with or "forward" in vars(layer):
        return "the layer overrides forward"
    if layer.kernel not in ("auto", "cpu", f"{name}_cpu"):
        return f"kernel={layer.kernel!r} was asked for"
    if (layer.residual or layer.stack_norm is not None) and layer.num_layers > 1:
        return "the engine's step has no residuals and norms between layers"
    if layer.check:
        return "check=True looks at the input"
    if noise.zoneout not in (0, (0, 0)):
        return "the engine's step has no zoneout"
    if layer.training and (noise.recurrent or noise.weight or (layer.dropout and layer.num_layers > 1)):
        return "the engine's step has no dropout"
    home = _own_weights(layer)
    return next((reason for cell in _list_cells(layer) if (reason := why_not_step(cell, home))), None)
