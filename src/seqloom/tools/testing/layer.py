"""What a layer must do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.layers.layer import select_rows
from seqloom.layers.recurrent.layer import Recurrent


def check_layer(make: Callable[[], nn.Module]) -> None:
    """What every layer promises, for a function that makes one that takes (B, T, D)."""
    layer: Any = make().eval()
    weight = next(layer.parameters())
    x = torch.randn(3, 6, layer.input_size, dtype=weight.dtype)
    _check_shapes(layer, x)
    _check_lengths(layer, x)
    _check_rows(layer, x)
    if getattr(layer, "causal", not layer.bidirectional):
        _check_streaming(layer, x)
        _check_going_on(layer, x)
    _check_state_dict(layer, make, x)
    _check_types(layer, x)


def _check_shapes(layer: Any, x: Tensor) -> None:
    y, state = layer(x)
    assert tuple(y.shape) == (*x.shape[:2], layer.output_size), f"output is {tuple(y.shape)}"
    rows = isinstance(layer, Recurrent)  # its states are torch's: (layers, batch, ...)
    for s in tensors(state):
        assert s.shape[rows] == len(x), f"a state is {tuple(s.shape)}, expected {len(x)} rows in dimension {rows:d}"
    again, after = layer(x)
    with torch.no_grad():
        after_it = [s.clone() for s in tensors(after)]
        again.add_(1)
    for s, before in zip(tensors(after), after_it, strict=True):
        assert torch.equal(s, before), "a state shares memory with the output: who writes to one changes the other"
    again, _ = layer(x)
    assert torch.equal(y, again), "two calls with the same input differ: the layer is not deterministic"
    layer(x[:0])


def _check_lengths(layer: Any, x: Tensor) -> None:
    lengths = torch.tensor([6, 0, 3])
    y, state = layer(x, lengths=lengths)
    assert not y[1].any() and not y[2, 3:].any(), "outputs past a row's length must be 0"
    poisoned = x.clone()
    poisoned[1], poisoned[2, 3:] = 1e3, 1e3
    y2, state2 = layer(poisoned, lengths=lengths)
    same(y2, y, "outputs depend on what lies past a row's length")
    y3, state3 = layer(x[2:, :3])
    same(y[2:, :3], y3, "a row with a length differs from the same row alone")
    if isinstance(layer, Recurrent):  # others may keep more than they need, and are judged by how they go on
        for a, b, c in zip(tensors(state), tensors(state2), tensors(state3), strict=True):
            same(a, b, "the last state depends on what lies past a row's length")
            same(a[:, 2:], c, "the last state is not the one at a row's length")


def _check_going_on(layer: Any, x: Tensor) -> None:
    """From the state at each row's length, and from that of other rows."""
    lengths, more = torch.tensor([3, 0, 2]), x[:, 3:]
    y, _ = layer(more, layer(x[:, :3], lengths=lengths)[1])
    for row, length in enumerate(lengths.tolist()):
        alone, _ = layer(torch.cat([x[row, :length], more[row]]).unsqueeze(0))
        same(y[row], alone[0, length:], f"a row of length {length} goes on differently from the same row alone")
    rows = torch.tensor([2, 0, 2, 1])
    _, state = layer(x[:, :3])
    y, _ = layer(more[rows], select_rows(layer, state, rows))
    same(y, layer(more, state)[0][rows], "selected rows go on differently")


def _check_rows(layer: Any, x: Tensor) -> None:
    y, _ = layer(x)
    other = x.clone()
    other[1:] = torch.randn_like(other[1:])
    same(layer(other)[0][:1], y[:1], "a row's output depends on the other rows of the batch")


def _check_streaming(layer: Any, x: Tensor) -> None:
    y, state = layer(x)
    now: Any = None
    for t in range(x.shape[1]):
        y_t, now = layer.step(x[:, t], now)
        same(y_t, y[:, t], f"step {t} of streaming differs from the whole sequence at once")
    if isinstance(layer, Recurrent):
        for a, b in zip(tensors(now), tensors(state), strict=True):
            same(a, b, "the state after streaming differs from that of the whole sequence")
    same(layer.step(x[:, 0], now)[0], layer.step(x[:, 0], state)[0], "after streaming the layer goes on differently")


def _check_state_dict(layer: Any, make: Callable[[], nn.Module], x: Tensor) -> None:
    other = make().eval()
    other.load_state_dict(layer.state_dict())
    same(other(x)[0], layer(x)[0], "a layer with a loaded state_dict gives another output: a weight is not in it")
    same(copy.deepcopy(layer)(x)[0], layer(x)[0], "a deep copy gives another output")


def _check_types(layer: Any, x: Tensor) -> None:
    for dtype in (torch.bfloat16, torch.float64):
        low = copy.deepcopy(layer).to(dtype)
        y, state = low(x.to(dtype))
        for t in (y, *(s for s in tensors(state) if s.is_floating_point())):
            kept = t is not y and t.dtype == torch.promote_types(dtype, torch.float32)  # sums may be held wider
            assert t.dtype == dtype or kept, f"a layer in {dtype} returned {t.dtype}"
            assert torch.isfinite(t).all(), f"a layer in {dtype} returned values that are not finite"


def tensors(state: Tensor | State | None) -> State:
    return () if state is None else (state,) if isinstance(state, Tensor) else tuple(state)


def same(a: Tensor, b: Tensor, message: str) -> None:
    """Equal up to the rounding of another order of sums."""
    close = 1e-12 if a.dtype == torch.float64 else 1e-5
    difference = float((a.detach() - b.detach()).abs().max()) if a.numel() else 0.0
    assert difference <= close * (1 + float(b.detach().abs().max() if b.numel() else 0)), (
        f"{message} (by {difference:.2g})"
    )
