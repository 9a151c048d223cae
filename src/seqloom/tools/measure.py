"""Measure the cost of a cell and how far its gradients reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from seqloom.core.cell import Cell, State
from seqloom.core.errors import InputError
from seqloom.layers.recurrent.layer import Recurrent

# Parameters of one layer with d inputs and h units, as papers and torch count them.
FORMULAS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "rnn": ("dh + h^2 + 2h", lambda d, h: d * h + h * h + 2 * h),
    "lstm": ("4(dh + h^2 + 2h)", lambda d, h: 4 * (d * h + h * h + 2 * h)),
    "gru": ("3(dh + h^2 + 2h)", lambda d, h: 3 * (d * h + h * h + 2 * h)),
    "attn_rnn": (
        "dh + 4h^2 + 6h, or 4h^2 + 5h where d = h",
        lambda d, h: 4 * h * h + (5 * h if d == h else d * h + 6 * h),
    ),
    "ln_gru": ("3(dh + h^2 + 4h)", lambda d, h: 3 * (d * h + h * h + 4 * h)),
    "ln_lstm": ("4(dh + h^2 + 4h) + 2h", lambda d, h: 4 * (d * h + h * h + 4 * h) + 2 * h),
    "indrnn": ("dh + 2h", lambda d, h: d * h + 2 * h),
    "min_gru": ("2(dh + h)", lambda d, h: 2 * (d * h + h)),
    "min_lstm": ("3(dh + h)", lambda d, h: 3 * (d * h + h)),
    "ode_gru": ("3(dh + 2h^2 + 3h)", lambda d, h: 3 * (d * h + 2 * h * h + 3 * h)),
    "rnn_attention": ("dh + 3h^2 + h", lambda d, h: d * h + 3 * h * h + h),
}
# The same with one bias per gate, as counted in texts that write W [h, x] + b.
ONE_BIAS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "rnn": ("h(h + d + 1)", lambda d, h: h * (h + d + 1)),
    "lstm": ("4h(h + d + 1)", lambda d, h: 4 * h * (h + d + 1)),
    "gru": ("3h(h + d + 1)", lambda d, h: 3 * h * (h + d + 1)),
}


@dataclass(frozen=True)
class Cost:
    """The cost of one layer of a cell."""

    cell: str
    input: int
    hidden: int
    parameters: int
    formula: str  # "" if the literature has none
    formula_parameters: int | None
    flops_per_token: int  # operations of the products in the forward pass; a multiply-add counts as two
    activation_bytes_per_token: int  # saved by the reference loop for the backward pass, in float32
    state_floats: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parameters(module: nn.Module) -> int:
    """Return the number of trainable values of a module."""
    return sum(p.numel() for p in module.parameters())


def cost(
    cell: str | type[Cell],
    input_size: int,
    hidden_size: int,
    **settings: Any,  # noqa: ANN401  # forwarded to Recurrent
) -> Cost:
    """Measure the cost of one layer of a cell, by counting and by running a short sequence.

    Args:
        cell: A cell's name or class.
        input_size: Features of the input.
        hidden_size: Units of the layer.
        **settings: Settings of the cell.

    Example:
        >>> cost = seqloom.measure.cost("gru", 8, 16)
        >>> cost.parameters, cost.formula
        (1248, '3(dh + h^2 + 2h)')
    """
    layer = Recurrent(cell, input_size, hidden_size, batch_first=True, kernel="loop", **settings)
    name = layer.cell_at(0).name or str(cell)
    known = FORMULAS.get(name)
    x = torch.randn(4, 8, input_size)

    def count(measure: Callable[[Tensor], int], x: Tensor) -> int:
        """Return the cost that two more rows add, per token: work on the weights alone is done once for all rows."""
        return (measure(x) - measure(x[:2])) // (2 * x.shape[1])

    return Cost(
        cell=name,
        input=input_size,
        hidden=hidden_size,
        parameters=parameters(layer),
        formula=known[0] if known else "",
        formula_parameters=known[1](input_size, hidden_size) if known else None,
        flops_per_token=count(lambda x: count_flops(layer, x), x[:, :1]),  # every step multiplies the same sizes
        activation_bytes_per_token=count(lambda x: saved_bytes(layer, x), x),
        state_floats=sum(s[0].numel() for s in layer.cell_at(0).initial_state(x)),
    )


def count_flops(layer: nn.Module, x: Tensor) -> int:
    """Return the operations of the products in layer(x); a multiply-add counts as two."""
    with FlopCounterMode(display=False) as flops:
        layer(x)
    return flops.get_total_flops()


def saved_bytes(layer: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd saves for the backward pass of layer(x), without parameters and input."""
    return kept_bytes(lambda: layer(x), *layer.parameters(), x)


def kept_bytes(call: Callable[[], Any], *known: Tensor) -> int:
    """Return the bytes that autograd saves for the backward pass of a call, without the tensors in `known`."""
    own = {t.untyped_storage().data_ptr() for t in known}
    sizes: dict[int, int] = {}
    alive = []  # so that no address is used twice

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        call()
    return sum(sizes.values())


def jacobian_norms(layer: Recurrent, x: Tensor, hx: Tensor | State | None = None) -> Tensor:
    """Return the spectral norms (T,) of dh_t / dh_(t-1) for each step of one sequence x (T, D).

    They are those of the first layer's whole state, an LSTM's h and c together.
    """
    cell, states = _walk(layer, x, hx)
    project = cell.project(x.unsqueeze(0))
    norms = []
    for t in range(x.shape[0]):
        jacobian = _jacobian(cell, project[:, t], states[t])
        norms.append(torch.linalg.matrix_norm(jacobian, 2))
    return torch.stack(norms)


def gradient_norms(layer: Recurrent, x: Tensor, hx: Tensor | State | None = None) -> Tensor:
    """Return the spectral norms (T + 1,) of dh_T / dh_(T-k) for k = 0 .. T of one sequence x (T, D).

    This is the product of the steps' Jacobians, which starts at 1 for k = 0.
    """
    cell, states = _walk(layer, x, hx)
    project = cell.project(x.unsqueeze(0))
    size = sum(s[0].numel() for s in states[0])
    product = torch.eye(size, dtype=x.dtype, device=x.device)
    norms = [torch.linalg.matrix_norm(product, 2)]
    for t in reversed(range(x.shape[0])):
        product = product @ _jacobian(cell, project[:, t], states[t])
        norms.append(torch.linalg.matrix_norm(product, 2))
    return torch.stack(norms)


def initial_gradient_norm(layer: Recurrent, x: Tensor, hx: Tensor | State) -> float:
    """Return |dL/dh_0| for L = mean squared error of the last h to 1, for one sequence x (T, D).

    The norm is computed in float64, since in float32 the squares of a small gradient are 0.
    """
    h, *others = (hx,) if isinstance(hx, Tensor) else hx
    h = h.detach().requires_grad_()
    _, last = layer(_check_sequence(x), (h, *others) if others else h)
    last = last if isinstance(last, Tensor) else last[0]
    (gradient,) = torch.autograd.grad(nn.functional.mse_loss(last, torch.ones_like(last)), h)
    return float(gradient.double().norm())


def _check_sequence(x: Tensor) -> Tensor:
    if x.dim() != 2:
        raise InputError(f"a gradient is measured along one sequence (T, D), got shape {tuple(x.shape)}")
    return x


@torch.no_grad()
def _walk(layer: Recurrent, x: Tensor, hx: Tensor | State | None) -> tuple[Cell, list[State]]:
    """Return the first cell, and the state before every step."""
    _check_sequence(x)
    cell = layer.cell_at(0)
    state = cell.start(x.unsqueeze(0)) if hx is None else tuple(s[0] for s in ((hx,) if isinstance(hx, Tensor) else hx))
    project, states = cell.project(x.unsqueeze(0)), []
    for t in range(x.shape[0]):
        states.append(state)
        _, state = cell.step(project[:, t], state)
    return cell, states


def _jacobian(cell: Cell, x: Tensor, state: State) -> Tensor:
    """Return d state' / d state at one step as one matrix."""
    sizes = [s[0].numel() for s in state]

    def step(flat: Tensor) -> Tensor:
        before = tuple(p.view(s.shape) for p, s in zip(flat.split(sizes), state, strict=True))
        _, after = cell.step(x, before)
        return torch.cat([s.flatten() for s in after])

    flat = torch.cat([s.flatten() for s in state])
    return torch.autograd.functional.jacobian(step, flat, vectorize=True)
