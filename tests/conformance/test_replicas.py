"""Copies of a layer compute with their own weights: replicas of torch.nn.DataParallel, and shallow and deep copies."""

import copy
import importlib
import io

import pytest
import torch
from subjects import HIDDEN, INPUT, LAYER_SUBJECTS, QUICK_LAYERS, ROWS, SLOW_LAYERS, STEPS, UserCell, find_loss
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

import seqloom
from seqloom.core.cell import Cell
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.registry import find, list_names

RECURRENT = tuple(name for name in list_names() if name in Cell.registry)
SLOW = SLOW_LAYERS | {"in_modules"}  # compiled when they are first called
CHANGE = 1.25  # of the weights that replicas get, so that they differ from the master's


class InModules(Cell, name=""):
    """A cell whose weights are in a module: h' = tanh(W x + U h)."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        h = torch.tanh(x + self.U(state[0]))
        return h, (h,)


LAYERS = {
    **{name: build for name, build in LAYER_SUBJECTS.items() if name not in RECURRENT},
    "in_modules": lambda: Recurrent(InModules, INPUT, HIDDEN, batch_first=True),
    "gru_of_heads": lambda: seqloom.GRU(INPUT, HIDDEN, heads=2, batch_first=True),
    "gru_that_learns_its_start": lambda: seqloom.GRU(INPUT, HIDDEN, learn_initial_state=True, batch_first=True),
    "gru_with_dropped_weights": lambda: seqloom.GRU(
        INPUT, HIDDEN, dropouts=seqloom.Dropouts(weight=0.5), batch_first=True
    ).eval(),
    **{f"gru_{kernel}": lambda k=kernel: seqloom.GRU(INPUT, HIDDEN, kernel=k) for kernel in ("loop", "cpu", "aten")},
}
TWO_LAYERS = {  # stacked, in both directions where there are two
    name: lambda n=name: find(n)(INPUT, HIDDEN, num_layers=2)
    for name in (*RECURRENT, *LAYER_SUBJECTS)
    if name in list_names()
}


def mark(name):
    if name in SLOW:
        return pytest.param(name, marks=pytest.mark.slow)
    return name if name in QUICK_LAYERS or name not in LAYER_SUBJECTS else pytest.param(name, marks=pytest.mark.long)


@pytest.fixture
def replicate(monkeypatch):
    """Return torch's own `replicate`, with copies on the CPU, which it refuses, in place of those on GPUs."""
    module = importlib.import_module("torch.nn.parallel.replicate")

    def copy_tensors(tensors, devices, detach=False):
        return [[t.detach() if detach else CHANGE * t for t in tensors] for _ in devices]

    monkeypatch.setattr(module, "_get_device_index", lambda device, *_: device)
    monkeypatch.setattr(module, "_broadcast_coalesced_reshape", copy_tensors)
    return lambda layer: module.replicate(layer, [0, 1])[1]


def draw_input(layer):
    shape = (ROWS, STEPS, INPUT) if getattr(layer, "batch_first", True) else (STEPS, ROWS, INPUT)
    return torch.randn(shape)


def scale(layer):
    """Return a layer of its own with the weights of a replica."""
    other = copy.deepcopy(layer)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(CHANGE)
    return other


def check_replica(layer, replicate, uses=1):
    x, plain = draw_input(layer), scale(layer)
    for _ in range(3):  # until its calls are prepared
        layer(x)[0].sum().backward()
    layer.zero_grad()
    expected = plain(x)[0]
    find_loss(expected).backward()
    replica = replicate(layer)
    for _ in range(uses):
        y = replica(x)[0]
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    find_loss(y).backward()
    for (name, master), own in zip(layer.named_parameters(), plain.parameters(), strict=True):
        if own.grad is None:
            assert master.grad is None or not master.grad.any(), name
        else:
            torch.testing.assert_close(master.grad, CHANGE * own.grad, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", [mark(name) for name in (*LAYERS, *RECURRENT)])
def test_a_replica_computes_with_its_own_weights(name, replicate):
    check_replica((LAYERS | LAYER_SUBJECTS)[name](), replicate)


@pytest.mark.slow
@pytest.mark.parametrize("name", [mark(name) for name in TWO_LAYERS])
def test_a_replica_of_two_layers_that_is_called_often_computes_with_its_own_weights(name, replicate):
    check_replica(TWO_LAYERS[name](), replicate, uses=3)


def test_a_replica_inside_of_a_model_streams_with_its_own_weights(replicate):
    model = nn.Sequential(nn.Linear(INPUT, INPUT), seqloom.GRU(INPUT, HIDDEN))
    x = torch.randn(STEPS, ROWS, INPUT)
    with torch.no_grad():
        for step in x:
            model[1].step(step)
        expected = scale(model)(x)[0]
        replica, state = replicate(model), None
        for step, y in zip(x, expected, strict=True):
            actual, state = replica[1].step(replica[0](step), state)
            torch.testing.assert_close(actual, y)


@pytest.mark.slow
def test_a_replica_of_a_cell_is_scanned_with_its_own_weights(replicate):
    for cell in (seqloom.GRUCell(INPUT, HIDDEN), UserCell(INPUT, HIDDEN), InModules(INPUT, HIDDEN)):
        x = torch.randn(ROWS, STEPS, INPUT)
        torch.testing.assert_close(seqloom.scan(replicate(cell), x)[0], seqloom.scan(scale(cell), x)[0])
        torch.testing.assert_close(replicate(cell)(x[:, 0]), scale(cell)(x[:, 0]))


def test_a_cell_of_a_replica_that_was_not_called_says_what_to_call(replicate):
    replica = replicate(seqloom.GRU(INPUT, HIDDEN))
    with pytest.raises(AttributeError, match="call the layer instead of its cell"):
        replica.cells[0](torch.randn(ROWS, INPUT))


def replace_in_a_shallow_copy(layer, weights):
    other = copy.copy(layer)
    other._parameters = dict(weights)
    return other


def load_a_pickle(layer, weights):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    other.load_state_dict(weights)
    return other


def fill_empty_memory(layer, weights):
    other = copy.deepcopy(layer).to("meta").to_empty(device="cpu")
    other.load_state_dict(weights)
    return other


def average(layer, weights):
    other = AveragedModel(layer, avg_fn=lambda *averages: averages[1])
    with torch.no_grad():
        for name, p in other.module.named_parameters():
            p.copy_(weights[name])
    return other


def assign_state(layer, weights):
    other = copy.deepcopy(layer)
    other.load_state_dict(weights, assign=True)
    return other


def share(layer, weights):
    other = copy.deepcopy(layer).share_memory()
    other.load_state_dict(weights)
    return other


COPIES = (replace_in_a_shallow_copy, load_a_pickle, fill_empty_memory, average, assign_state, share)
COPIED = {
    **{name: LAYER_SUBJECTS[name] for name in ("deep_gru", "attn_rnn", "lstm_cpu_stack", "user_cell")},
    "gru_of_heads": LAYERS["gru_of_heads"],
}


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("make", COPIES)
def test_a_copy_computes_with_its_own_weights_and_the_layer_with_its(make, name):
    layer = COPIED[name]()
    x, plain = draw_input(layer), scale(layer)
    with torch.no_grad():
        before, expected = layer(x)[0], plain(x)[0]
        other = make(layer, plain.state_dict())
        for _ in range(3):  # until both are prepared
            torch.testing.assert_close(other(x)[0], expected)
            torch.testing.assert_close(layer(x)[0], before)


@pytest.mark.parametrize("name", sorted(COPIED.keys() - {"lstm_cpu_stack"}))  # which refuses vmap
def test_a_call_with_stacked_weights_of_several_layers_equals_a_call_of_each(name):
    layers = [COPIED[name]() for _ in range(2)]
    x = draw_input(layers[0])
    weights, buffers = stack_module_state(layers)
    base = copy.deepcopy(layers[0]).to("meta")
    y = vmap(lambda w, b: functional_call(base, (w, b), (x,))[0])(weights, buffers)
    torch.testing.assert_close(y, torch.stack([layer(x)[0] for layer in layers]), rtol=1e-4, atol=1e-5)


def test_a_function_that_is_applied_to_cells_changes_the_weights_of_their_layer():
    layer = seqloom.GRU(INPUT, HIDDEN)
    with torch.no_grad():
        layer.apply(lambda module: module.weight_hh.zero_() if isinstance(module, Cell) else None)
    assert not layer.weight_hh_l0.any()


def test_a_replica_of_a_parametrized_layer_computes_with_its_own_weights(replicate):
    layer = seqloom.GRU(INPUT, HIDDEN)
    parametrize.register_parametrization(layer, "weight_hh_l0", nn.Tanh())
    check_replica(layer, replicate)


def test_a_functional_call_of_a_layers_cell_is_refused_and_changes_nothing():
    layer = seqloom.GRU(INPUT, HIDDEN)
    cell, x = layer.cells[0], torch.randn(ROWS, INPUT)
    before = cell(x)
    weights = {name: CHANGE * p.detach() for name, p in cell.own_parameters().items()}
    with pytest.raises(TypeError, match="weight_ih_l0"):
        functional_call(cell, weights, (x,))
    torch.testing.assert_close(cell(x), before, rtol=0, atol=0)


def test_a_parameter_that_is_assigned_to_a_cell_is_its_layers():
    layer = seqloom.GRU(INPUT, HIDDEN)
    weight = layer.cells[0].weight_hh = nn.Parameter(torch.zeros(3 * HIDDEN, HIDDEN))
    assert layer.weight_hh_l0 is weight and layer.cells[0].weight_hh is weight
    assert layer.cells[0]._parameters.keys() == set()
