"""Checks for cells and layers, ours and other people's. Each raises AssertionError with the reason."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from seqloom.cell import Cell, State, find
from seqloom.job import Job
from seqloom.kernel import Kernel, load
from seqloom.kernels import any_loop
from seqloom.layers.recurrent import Recurrent
from seqloom.scan import scan
from seqloom.weights import bound, weights

SHAPES = ((1, 1, 3, 4), (2, 1, 5, 12), (1, 40, 8, 8), (5, 9, 7, 20), (9, 33, 16, 36), (7, 64, 32, 64))  # B, T, D, H
DRAWS = 4  # of weights and input: a single distance is a matter of luck


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


def check_layer(make: Callable[[], Recurrent]) -> None:
    """What every layer promises, for a function that makes one with batch_first=True."""
    layer = make().eval()
    weight = next(layer.parameters())
    x = torch.randn(3, 6, layer.input_size, dtype=weight.dtype)
    _check_shapes(layer, x)
    _check_lengths(layer, x)
    _check_rows(layer, x)
    if not layer.bidirectional:
        _check_streaming(layer, x)
    _check_state_dict(layer, make, x)
    _check_types(layer, x)


def check_kernel(
    kernel: Kernel | str, cell: str | type[Cell], dtype: torch.dtype = torch.float32, **settings: Any
) -> None:
    """A kernel gives what the reference loop gives: outputs, last state and every gradient.

    It may be at most twice as far from the loop in float64 (root mean square) as the loop in its own type, where a last
    bit is allowed to both. Short, long, odd, ragged, strided, twice; memory left unwritten is NaN here.
    """
    code = load(kernel) if isinstance(kernel, str) else kernel
    limit = 3 if dtype == torch.float64 else 2  # float64 is itself as far from the truth as the loop: 2 + 1
    generator, strict = torch.random.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then holds NaN
    try:
        for B, T, D, H in SHAPES:
            for lengths in (None, torch.arange(B) * T // max(1, B - 1)):
                where = f"B={B} T={T} D={D} H={H} lengths={lengths}"
                far: dict[str, float] = defaultdict(float)
                near: dict[str, float] = defaultdict(float)
                for seed in range(DRAWS):
                    torch.manual_seed(seed)
                    one = find(cell)(D, H, **settings)
                    x = torch.randn(T, B, D).transpose(0, 1)  # strided
                    _add_errors(code, one, x, lengths, dtype, far, near, where)
                for name, error in far.items():
                    assert error <= limit**2 * near[name], (
                        f"{name} is {(error / near[name]) ** 0.5:.1f} times as far from float64 as the loop, {where}"
                    )
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.random.set_rng_state(generator)


def _add_errors(
    code: Kernel, cell: Cell, x: Tensor, lengths: Tensor | None, dtype: torch.dtype, far: Any, near: Any, where: str
) -> None:
    """Squared distances from float64, of the kernel and of the loop, both in units of their types' rounding."""
    exact = everything(any_loop.run, copy.deepcopy(cell).double(), x.double(), lengths)
    loop = everything(any_loop.run, cell, x, lengths)  # in float32: of float64's own rounding nothing exact is known
    own, x = copy.deepcopy(cell).to(dtype), x.to(dtype)
    reason = code.why_not(own, Job(x, own.start(x), lengths))
    assert reason is None, f"the kernel does not take {where}: {reason}"
    found, again = (everything(code.run, own, x, lengths) for _ in range(2))
    for name, true in exact.items():
        assert torch.equal(found[name], again[name]), f"{name} differs between two calls, {where}"
        unit, size = torch.finfo(dtype).eps, true.square().sum().item()
        far[name] += (found[name].double() - true).square().sum().item() / unit**2
        near[name] += (loop[name].double() - true).square().sum().item() / torch.finfo(torch.float32).eps ** 2 + size


def everything(run: Any, cell: Cell, x: Tensor, lengths: Tensor | None) -> dict[str, Tensor]:
    """What a scan gives, and the gradients of a loss that weighs every output differently."""
    x = x.detach().requires_grad_()
    state = tuple((s.detach() + 0.1).requires_grad_() for s in cell.start(x))
    y, last = run(cell, Job(x, state, lengths))
    loss = sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in (y, *last))
    leaves = {"dx": x, **{f"dstate {i}": s for i, s in enumerate(state)}}
    leaves |= {f"d{name}": p for name, p in cell.named_parameters()}
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found = {"y": y, **{f"state {i}": s for i, s in enumerate(last)}}
    found |= {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, gradients, strict=True)}
    return {name: t.detach() for name, t in found.items()}


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
        view = bound(cell, dict(zip(own, rest[len(state) :], strict=True)))
        y, after = scan(view, x, rest[: len(state)], kernel="loop")
        return y, *after

    leaves = [t.requires_grad_() for t in (x, *state, *own.values())]
    torch.autograd.gradcheck(run, leaves, fast_mode=True)


def _check_shapes(layer: Recurrent, x: Tensor) -> None:
    y, state = layer(x)
    assert tuple(y.shape) == (*x.shape[:2], layer.output_size), f"output is {tuple(y.shape)}"
    for s in tensors(state):
        assert s.shape[:2] == (len(layer.cells), len(x)), f"a state is {tuple(s.shape)}, expected (layers, batch, ...)"
    again, _ = layer(x)
    assert torch.equal(y, again), "two calls with the same input differ: the layer is not deterministic"
    layer(x[:0])


def _check_lengths(layer: Recurrent, x: Tensor) -> None:
    lengths = torch.tensor([6, 0, 3])
    y, state = layer(x, lengths=lengths)
    assert not y[1].any() and not y[2, 3:].any(), "outputs past a row's length must be 0"
    poisoned = x.clone()
    poisoned[1], poisoned[2, 3:] = 1e3, 1e3
    y2, state2 = layer(poisoned, lengths=lengths)
    same(y2, y, "outputs depend on what lies past a row's length")
    y3, state3 = layer(x[2:, :3])
    same(y[2:, :3], y3, "a row with a length differs from the same row alone")
    for a, b, c in zip(tensors(state), tensors(state2), tensors(state3), strict=True):
        same(a, b, "the last state depends on what lies past a row's length")
        same(a[:, 2:], c, "the last state is not the one at a row's length")


def _check_rows(layer: Recurrent, x: Tensor) -> None:
    y, _ = layer(x)
    other = x.clone()
    other[1:] = torch.randn_like(other[1:])
    same(layer(other)[0][:1], y[:1], "a row's output depends on the other rows of the batch")


def _check_streaming(layer: Recurrent, x: Tensor) -> None:
    y, state = layer(x)
    now: Any = None
    for t in range(x.shape[1]):
        y_t, now = layer.step(x[:, t], now)
        same(y_t, y[:, t], f"step {t} of streaming differs from the whole sequence at once")
    for a, b in zip(tensors(now), tensors(state), strict=True):
        same(a, b, "the state after streaming differs from that of the whole sequence")


def _check_state_dict(layer: Recurrent, make: Callable[[], Recurrent], x: Tensor) -> None:
    other = make().eval()
    other.load_state_dict(layer.state_dict())
    same(other(x)[0], layer(x)[0], "a layer with a loaded state_dict gives another output: a weight is not in it")
    same(copy.deepcopy(layer)(x)[0], layer(x)[0], "a deep copy gives another output")


def _check_types(layer: Recurrent, x: Tensor) -> None:
    for dtype in (torch.bfloat16, torch.float64):
        low = copy.deepcopy(layer).to(dtype)
        y, state = low(x.to(dtype))
        for t in (y, *tensors(state)):
            assert t.dtype == dtype, f"a layer in {dtype} returned {t.dtype}"
            assert torch.isfinite(t).all(), f"a layer in {dtype} returned values that are not finite"


def tensors(state: Tensor | State) -> State:
    return (state,) if isinstance(state, Tensor) else tuple(state)


def same(a: Tensor, b: Tensor, message: str) -> None:
    """Equal up to the rounding of another order of sums."""
    close = 1e-12 if a.dtype == torch.float64 else 1e-5
    difference = float((a.detach() - b.detach()).abs().max()) if a.numel() else 0.0
    assert difference <= close * (1 + float(b.detach().abs().max() if b.numel() else 0)), (
        f"{message} (by {difference:.2g})"
    )
