"""Check a cell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.plurals import count
from seqloom.core.weights import bind_weights, weights
from seqloom.kernels.runner import scan
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.testing.layer import assert_same, check_layer


def check_cell(
    cell: str | type[Cell],
    input_size: int = 5,
    hidden_size: int = 8,
    **settings: Any,  # noqa: ANN401  # forwarded to Recurrent
) -> None:
    """Check that a cell works in `Recurrent`.

    Checks shapes, types, gradients (float64, against finite differences), lengths, resets, independence of the rows of
    a batch, streaming, state_dict and determinism. Takes up to a few seconds.

    Args:
        cell: A cell's name or class.
        input_size: Features of the input.
        hidden_size: Units of the cell.
        **settings: Settings of the cell.

    Raises:
        AssertionError: With the reason, if a check fails.

    Example:
        >>> seqloom.testing.check_cell("gru")
    """
    generator = torch.random.get_rng_state()
    torch.manual_seed(0)
    try:
        layer = Recurrent(
            cell, input_size, hidden_size, batch_first=True, kernel="loop", dtype=torch.float64, **settings
        )
        one = layer.cell_at(0)
        x = torch.randn(3, 4, input_size, dtype=torch.float64)
        _check_step(one, x)
        _check_gradients(one, x)
        check_layer(lambda: Recurrent(cell, input_size, hidden_size, batch_first=True, kernel="loop", **settings))
        _check_resets(layer, x)
    finally:
        torch.random.set_rng_state(generator)


def _check_step(cell: Cell, x: Tensor) -> None:
    state = cell.start(x)
    assert isinstance(state, tuple), f"initial_state must return a tuple, got {type(state).__name__}"
    project = cell.project(x)
    assert project.shape[:2] == x.shape[:2], (
        f"project must keep (B, T), but turned {tuple(x.shape)} into {tuple(project.shape)}"
    )
    y, after = cell.step(project[:, 0], state)
    assert tuple(y.shape) == (len(x), cell.output_size), (
        f"step's output is {tuple(y.shape)}, expected {(len(x), cell.output_size)}"
    )
    assert len(after) == len(state), f"step returned {count(len(after), 'state')}, initial_state {len(state)}"
    for i, (a, s) in enumerate(zip(after, state, strict=True)):
        assert a.shape == s.shape, f"state {i} changes shape in a step: {tuple(s.shape)} to {tuple(a.shape)}"
        assert a.dtype == s.dtype, f"state {i} changes type in a step: {s.dtype} to {a.dtype}"
    assert_same(cell.output(after), y, "output(state) must equal the output that step returned with it")


def _check_gradients(cell: Cell, x: Tensor) -> None:
    """Compare the gradients of input, state and weights with finite differences."""
    x = x[:2, :3].clone()
    state = tuple(s.detach().clone() + 0.1 for s in cell.start(x))
    own = {name: w.detach().clone() for name, w in weights(cell).items() if w.is_floating_point()}

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        view = bind_weights(cell, dict(zip(own, rest[len(state) :], strict=True)))
        y, after = scan(view, x, rest[: len(state)], kernel="loop")
        return y, *after

    leaves = [t.requires_grad_() for t in (x, *state, *own.values())]
    torch.autograd.gradcheck(run, leaves, fast_mode=True)


def _check_resets(layer: Recurrent, x: Tensor) -> None:
    """Start one row again at its third step, and compare with a new sequence."""
    reset = torch.zeros(x.shape[:2], dtype=torch.bool)
    reset[1, 2] = True
    y, _ = layer(x, reset=reset)
    whole, _ = layer(x)
    assert_same(y[1:2, 2:], layer(x[1:2, 2:])[0], "after a reset a row differs from a new sequence")
    assert_same(y[0], whole[0], "the reset of a row changes another row")
    assert_same(y[1, :2], whole[1, :2], "a reset changes the steps before it")
