"""Check a layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.layers.layer import Layer, select_rows
from seqloom.layers.recurrent.layer import Recurrent


def check_layer(make: Callable[[], nn.Module]) -> None:
    """Check that a layer follows the contract of `Layer`.

    Checks shapes, lengths, independence of rows, streaming, continuing from a state, state_dict and types.

    Args:
        make: A function that builds the layer; its inputs are (B, T, D).

    Raises:
        AssertionError: With the reason, if a check fails.

    Example:
        >>> seqloom.testing.check_layer(lambda: seqloom.TCN(4, 8))
    """
    layer = cast(Layer, make().eval())
    weight = next(layer.parameters())
    x = torch.randn(3, 6, layer.input_size, dtype=weight.dtype)
    _check_shapes(layer, x)
    _check_lengths(layer, x)
    _check_rows(layer, x)
    if getattr(layer, "causal", not layer.bidirectional):
        _check_streaming(layer, x)
        _check_continuing(layer, x)
    _check_state_dict(layer, make, x)
    _check_types(layer, x)


def _check_shapes(layer: Layer, x: Tensor) -> None:
    y, state = layer(x)
    assert tuple(y.shape) == (*x.shape[:2], layer.output_size), f"output is {tuple(y.shape)}"
    rows = isinstance(layer, Recurrent)  # its states are torch's: (layers, batch, ...)
    for s in as_tuple(state):
        assert s.shape[rows] == len(x), f"a state is {tuple(s.shape)}, expected {len(x)} rows in dimension {rows:d}"
    again, after = layer(x)
    with torch.no_grad():
        after_it = [s.clone() for s in as_tuple(after)]
        again.add_(1)
    for s, before in zip(as_tuple(after), after_it, strict=True):
        assert torch.equal(s, before), "a state shares memory with the output: writing to one changes the other"
    again, _ = layer(x)
    assert torch.equal(y, again), "two calls with the same input differ: the layer is not deterministic"
    layer(x[:0])


def _check_lengths(layer: Layer, x: Tensor) -> None:
    lengths = torch.tensor([6, 0, 3])
    y, state = layer(x, lengths=lengths)
    assert not y[1].any() and not y[2, 3:].any(), "outputs past a row's length must be 0"
    poisoned = x.clone()
    poisoned[1], poisoned[2, 3:] = 1e3, 1e3
    y2, state2 = layer(poisoned, lengths=lengths)
    assert_same(y2, y, "outputs depend on what lies past a row's length")
    y3, state3 = layer(x[2:, :3])
    assert_same(y[2:, :3], y3, "a row with a length differs from the same row alone")
    if isinstance(layer, Recurrent):  # other layers may keep more; _check_continuing tests their states
        for a, b, c in zip(as_tuple(state), as_tuple(state2), as_tuple(state3), strict=True):
            assert_same(a, b, "the last state depends on what lies past a row's length")
            assert_same(a[:, 2:], c, "the last state is not the one at a row's length")


def _check_continuing(layer: Layer, x: Tensor) -> None:
    """Continue from the state at each row's length, and from the state of other rows."""
    lengths, more = torch.tensor([3, 0, 2]), x[:, 3:]
    y, _ = layer(more, layer(x[:, :3], lengths=lengths)[1])
    for row, length in enumerate(lengths.tolist()):
        alone, _ = layer(torch.cat([x[row, :length], more[row]]).unsqueeze(0))
        assert_same(y[row], alone[0, length:], f"a row of length {length} continues differently than alone")
    rows = torch.tensor([2, 0, 2, 1])
    _, state = layer(x[:, :3])
    y, _ = layer(more[rows], select_rows(layer, state, rows))
    assert_same(y, layer(more, state)[0][rows], "selected rows continue differently")


def _check_rows(layer: Layer, x: Tensor) -> None:
    y, _ = layer(x)
    other = x.clone()
    other[1:] = torch.randn_like(other[1:])
    assert_same(layer(other)[0][:1], y[:1], "a row's output depends on the other rows of the batch")


def _check_streaming(layer: Layer, x: Tensor) -> None:
    y, state = layer(x)
    now: Any = None
    for t in range(x.shape[1]):
        y_t, now = layer.step(x[:, t], now)
        assert_same(y_t, y[:, t], f"step {t} of streaming differs from the whole sequence")
    if isinstance(layer, Recurrent):
        for a, b in zip(as_tuple(now), as_tuple(state), strict=True):
            assert_same(a, b, "the state after streaming differs from that of the whole sequence")
    assert_same(
        layer.step(x[:, 0], now)[0], layer.step(x[:, 0], state)[0], "after streaming the layer continues differently"
    )


def _check_state_dict(layer: Layer, make: Callable[[], nn.Module], x: Tensor) -> None:
    other = make().eval()
    other.load_state_dict(layer.state_dict())
    assert_same(other(x)[0], layer(x)[0], "a loaded state_dict gives another output: a weight is not in it")
    assert_same(copy.deepcopy(layer)(x)[0], layer(x)[0], "a deep copy gives another output")


def _check_types(layer: Layer, x: Tensor) -> None:
    for dtype in (torch.bfloat16, torch.float64):
        low = copy.deepcopy(layer).to(dtype)
        y, state = low(x.to(dtype))
        for t in (y, *(s for s in as_tuple(state) if s.is_floating_point())):
            is_wider = t is not y and t.dtype == torch.promote_types(dtype, torch.float32)  # sums may be held wider
            assert t.dtype == dtype or is_wider, f"a layer in {dtype} returned {t.dtype}"
            assert torch.isfinite(t).all(), f"a layer in {dtype} returned values that are not finite"


def as_tuple(state: Tensor | State | None) -> State:
    return () if state is None else (state,) if isinstance(state, Tensor) else tuple(state)


def assert_same(a: Tensor, b: Tensor, message: str) -> None:
    """Raise an error unless a and b are equal up to rounding."""
    close = 1e-12 if a.dtype == torch.float64 else 1e-5
    difference = float((a.detach() - b.detach()).abs().max()) if a.numel() else 0.0
    assert difference <= close * (1 + float(b.detach().abs().max() if b.numel() else 0)), (
        f"{message} (by {difference:.2g})"
    )
