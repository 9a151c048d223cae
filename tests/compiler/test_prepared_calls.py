"""Repeated calls of a layer of the user's own cell: found by the engine, they follow every change of the cell."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import seqloom
from cells import CELLS, FastWeights, HeadsGRU, Slots
from seqloom.core.cell import Cell
from seqloom.kernels.compiled import kernel, packing, prepared
from seqloom.kernels.compiled.prepared import CompiledStack
from seqloom.kernels.cpu import bound_call
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

FACTOR = 1.0


class Gated(Cell):
    """A leaky unit with a gate, whose step reads a setting, a global name, a class attribute and a method."""

    share = 0.5

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.alpha = 0.3
        self.weight_x = nn.Parameter(torch.empty(2 * hidden_size, input_size))
        self.weight_h = nn.Parameter(torch.empty(2 * hidden_size, hidden_size))
        self.uniform_()

    def project(self, x):
        return F.linear(x, self.weight_x)

    def bend(self, a):
        return torch.tanh(a)

    def step(self, x, state):
        (h,) = state
        g, n = (x + F.linear(h, self.weight_h)).chunk(2, -1)
        h = self.alpha * h + self.share * torch.sigmoid(g) * self.bend(n) * FACTOR
        return h, (h,)


class WithModules(Cell):
    """A GRU-like cell whose modules hold its weights."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.of_input = nn.Linear(input_size, 2 * hidden_size)
        self.of_state = nn.Linear(hidden_size, 2 * hidden_size, bias=False)

    def step(self, x, state):
        (h,) = state
        z, n = (self.of_input(x) + self.of_state(h)).chunk(2, -1)
        h = torch.lerp(h, torch.tanh(n), torch.sigmoid(z))
        return h, (h,)


def make_layer(kind=Gated, **settings):
    torch.manual_seed(0)
    return seqloom.Recurrent(kind, 3, 8, **settings)


def compute(layer, x, lengths, calls=1):
    """Return outputs, last states and all gradients of calls in turn, and what a call without gradients returns."""
    x, state, results = x.clone().requires_grad_(), None, []
    for _ in range(calls):
        y, state = layer(x, state, lengths)
        results += [y, *(state if isinstance(state, tuple) else (state,))]
    loss = results[0].square().sum() + sum(t.sin().sum() for t in results[1:])
    gradients = torch.autograd.grad(loss, [x, *layer.parameters()], allow_unused=True)
    with torch.no_grad():
        return [*results, *gradients, *layer(x, lengths=lengths), layer(x, state, lengths)[0] if calls > 1 else None]


def check(layer, x, lengths, calls=1):
    """Compare a layer with the loop."""
    slow = copy.deepcopy(layer)
    slow.kernel = "loop"
    results = compute(layer, x, lengths, calls), compute(slow, x, lengths, calls)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def warm(layer, x, lengths=None):
    """Call a layer until the engine finds its calls."""
    for _ in range(3):
        compute(layer, x, lengths)
    with torch.no_grad():
        assert bound_call.load_bind() is None or layer._plans.find(vars(layer), x, None) is not None


@pytest.mark.parametrize(
    "settings", [{}, {"batch_first": True}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True}], ids=str
)
@pytest.mark.parametrize("lengths", [None, [6, 0, 2]], ids=["equal", "lengths"])
@pytest.mark.parametrize("kind", [Gated, WithModules])
def test_repeated_calls_have_the_loops_values_and_gradients(kind, settings, lengths):
    layer, x = make_layer(kind, **settings), torch.randn(6, 3, 3)
    x = x.transpose(0, 1).contiguous() if "batch_first" in settings else x
    for _ in range(3):
        check(layer, x, lengths)
    assert {type(plan) for plan in layer._plans.plans.values()} == {CompiledStack}
    has_passes = [cell.passes is not None for plan in layer._plans.plans.values() for cell in plan.cells]
    assert all(has_passes) if "bidirectional" not in settings else not any(has_passes)


SHORT = [cell for cell in CELLS if cell not in (HeadsGRU, Slots, FastWeights)]  # values of more than two dimensions


@pytest.mark.parametrize("lengths", [None, [6, 0, 2]], ids=["equal", "lengths"])
@pytest.mark.parametrize("kind", SHORT, ids=lambda kind: kind.__name__)
def test_a_short_call_of_a_cell_is_one_call_of_the_engine_with_the_loops_results(kind, lengths):
    layer, x = seqloom.Recurrent(kind, 3, 5, kernel="compiled", dtype=torch.float64), torch.randn(6, 3, 3).double()
    check(layer, x, lengths, calls=2)
    check(layer, x[:, 0].contiguous(), None)
    assert all(cell.passes is not None for plan in layer._plans.plans.values() for cell in plan.cells)


def test_outputs_and_inputs_of_a_short_call_may_be_changed_in_place():
    layer, x = make_layer(), torch.randn(6, 3, 3)
    warm(layer, x)
    expected = torch.autograd.grad(layer(x)[0].exp().sum(), [*layer.parameters()])
    y, h = layer(x)
    with torch.no_grad():
        h.zero_()
    torch.testing.assert_close(torch.autograd.grad(y.exp_().sum(), [*layer.parameters()]), expected)
    layer(x)
    y, _ = layer(x)
    x.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()


CHANGES = {
    "a setting": lambda _, layer: setattr(layer.cells[0], "alpha", 0.9),
    "a class attribute": lambda patch, _: patch.setattr(Gated, "share", 0.1),
    "a method": lambda patch, _: patch.setattr(Gated, "bend", lambda _, a: torch.sin(a)),
    "a method of the cell": lambda _, layer: setattr(layer.cells[0], "bend", torch.sin),
    "the code of a method": lambda patch, _: patch.setattr(
        Gated.bend, "__code__", (lambda _, a: torch.relu(a)).__code__
    ),
    "a global name": lambda patch, _: patch.setitem(globals(), "FACTOR", 0.2),
    "a function of torch": lambda patch, _: patch.setattr(torch, "sigmoid", torch.cos),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_repeated_call_follows_a_change(name, monkeypatch):
    layer, x = make_layer(), torch.randn(6, 3, 3)
    warm(layer, x)
    before = layer(x)[0]
    CHANGES[name](monkeypatch, layer)
    assert not torch.allclose(before, layer(x)[0], atol=1e-3)
    check(layer, x, None)


def _change_parameter(layer):
    layer.cells[0].of_input.weight = nn.Parameter(torch.randn(16, 3))


def _change_memory(layer):
    layer.cells[0].of_state.weight.data = torch.randn(16, 8)


def _change_module(layer):
    layer.cells[0].of_state = nn.Linear(8, 16)


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def _change_kind_of_module(layer):
    """Put a module of another kind with the same weight in place of one."""
    other, cell = Twice(8, 16, bias=False), layer.cells[0]
    other.weight, cell.of_state = cell.of_state.weight, other


def _remove_bias(layer):
    layer.cells[0].of_input.bias = None


def _reverse_units(layer):
    """Reverse the order of the units of a module."""
    module = layer.cells[0].of_input
    module.weight.data, module.bias.data = module.weight.data.flip(0).contiguous(), module.bias.data.flip(0)


OF_MODULES = [_change_parameter, _change_memory, _change_module, _change_kind_of_module, _remove_bias, _reverse_units]


@pytest.mark.parametrize("change", OF_MODULES)
def test_a_repeated_call_follows_the_modules_of_a_cell(change):
    layer, x = make_layer(WithModules), torch.randn(6, 3, 3)
    warm(layer, x)
    old, before = copy.deepcopy(layer), layer(x)[0]
    change(layer)
    assert not torch.allclose(before, layer(x)[0], atol=1e-3)
    for _ in range(3):  # until the engine finds the changed layer
        check(layer, x, None)
    layer.load_state_dict(old.state_dict(), strict=False)
    check(layer, x, None)


def test_a_repeated_call_returns_gradients_of_the_weights_that_need_them():
    layer, x = make_layer(WithModules), torch.randn(6, 3, 3)
    warm(layer, x)
    frozen = layer.cells[0].of_input.weight.requires_grad_(False)
    layer(x)[0].sum().backward()
    assert frozen.grad is None and all(p.grad is not None for p in layer.parameters() if p is not frozen)
    layer.requires_grad_(False)
    assert not layer(x)[0].requires_grad


@pytest.mark.parametrize("lengths", [[3, 0, 5, 5, -1, 9, 1], [0, 0], [4]], ids=str)
@pytest.mark.parametrize("is_time_first", [True, False])
def test_the_engine_packs_a_batch_as_torch_does(lengths, is_time_first, monkeypatch):
    given = len(lengths), 5, torch.tensor(lengths), None, is_time_first
    by_engine = packing.Packing.of(*given)
    monkeypatch.setattr(packing, "_load_engine", lambda: None)
    by_torch = packing.Packing.of(*given)
    for name in ("B", "T", "length", "N"):
        assert getattr(by_engine, name) == getattr(by_torch, name)
    for name in ("count", "offset", "order", "place", "row", "before", "last", "ends"):
        torch.testing.assert_close(getattr(by_engine, name), getattr(by_torch, name))


def test_a_repeated_call_has_second_derivatives():
    layer, x = make_layer(dtype=torch.float64), torch.randn(6, 3, 3, dtype=torch.float64, requires_grad=True)
    warm(layer, x.detach())

    def penalise(kernel):
        layer.kernel = kernel
        (slope,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, *layer.parameters()])

    torch.testing.assert_close(penalise("auto"), penalise("loop"))


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_plan_from_disk_that_cannot_be_compared_runs_without_passes(is_loaded, monkeypatch):
    def fail(*_):
        raise RuntimeError("a program does not fit")

    compile_cell = kernel.compile_cell
    monkeypatch.setattr(kernel, "compile_cell", lambda *given: replace(compile_cell(*given), is_loaded=is_loaded))
    monkeypatch.setattr(prepared._PreparedCell, "_is_same", fail)
    layer, x = make_layer(kernel="compiled"), torch.randn(4, 2, 3)
    with torch.no_grad():
        if not is_loaded:  # a fault of the compiler, which nothing hides
            with pytest.raises(RuntimeError, match="does not fit"):
                layer(x)
            return
        y, _ = layer(x)
        layer.kernel = "loop"
        torch.testing.assert_close(y, layer(x)[0])
