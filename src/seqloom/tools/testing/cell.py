"""What a cell must do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.weights import bind_weights, weights
from seqloom.kernels.runner import scan
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.testing.layer import check_layer, same


def check_cell(cell: str | type[Cell], input_size: int = 5, hidden_size: int = 8, **settings: Any) -> None:
    """Everything a cell must do to work in `Recurrent`; takes a few seconds.

    Shapes, types, gradients (float64, against finite differences), lengths, independence of the
    rows of a batch, streaming equal to the whole, state_dict, determinism.
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
    finally:
        torch.random.set_rng_state(generator)


def _check_step(cell: Cell, x: Tensor) -> None:
    state = cell.start(x)
    assert isinstance(state, tuple), f"initial_state must return a tuple, got {type(state).__name__}"
    project = cell.project(x)
    assert project.shape[:2] == x.shape[:2], (
        f"project must keep (B, T), made {tuple(x.shape)} into {tuple(project.shape)}"
    )
    y, after = cell.step(project[:, 0], state)
    assert tuple(y.shape) == (len(x), cell.output_size), (
        f"step's output is {tuple(y.shape)}, expected {(len(x), cell.output_size)}"
    )
    assert len(after) == len(state), f"step returned {len(after)} states, initial_state {len(state)}"
    for i, (a, s) in enumerate(zip(after, state, strict=True)):
        assert a.shape == s.shape, f"state {i} changes shape in a step: {tuple(s.shape)} to {tuple(a.shape)}"
        assert a.dtype == s.dtype, f"state {i} changes type in a step: {s.dtype} to {a.dtype}"
    same(cell.output(after), y, "output(state) must equal the output that step returned with it")


def _check_gradients(cell: Cell, x: Tensor) -> None:
    """Of the input, the state and every weight, against finite differences."""
    x = x[:2, :3].clone()
    state = tuple(s.detach().clone() + 0.1 for s in cell.start(x))
    own = {name: w.detach().clone() for name, w in weights(cell).items() if w.is_floating_point()}

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        view = bind_weights(cell, dict(zip(own, rest[len(state) :], strict=True)))
        y, after = scan(view, x, rest[: len(state)], kernel="loop")
        return y, *after

    leaves = [t.requires_grad_() for t in (x, *state, *own.values())]
    torch.autograd.gradcheck(run, leaves, fast_mode=True)
