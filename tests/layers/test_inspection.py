"""trace() shows every step of a layer, explain() its kernel and the reasons."""

import types

import pytest
import torch

import seqloom
import seqloom.cells  # the registry, for the parametrisation
from seqloom import Dropouts
from seqloom.kernels.compiled import kernel as compiled
from seqloom.kernels.registry import find_kernel, list_kernels
from seqloom.layers.dropouts import RECURRENT_WEIGHTS

X = torch.randn(3, 6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
LENGTHS = [6, 0, 4]
each_cell = pytest.mark.parametrize("cell", sorted(seqloom.Cell.registry))


def make(cell, *args, **kwargs):
    torch.manual_seed(0)
    return seqloom.Recurrent(cell, *args or (3, 8), batch_first=True, dtype=torch.float64, **kwargs)


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@each_cell
def test_a_trace_ends_as_the_layer_does(cell, lengths):
    layer = make(cell, 3, 8, 2, bidirectional=True)
    seen = seqloom.trace(layer, X, lengths=lengths)
    y, state = layer(X, lengths=lengths)
    close(seen.output, y)
    for mine, expected in zip(tensors(seen.state), tensors(state), strict=True):
        close(mine, expected)
    assert list(seen.layers) == ["l0", "l0_reverse", "l1", "l1_reverse"]
    close(torch.cat([seen.layers["l1"].y, seen.layers["l1_reverse"].y], -1), y)


@each_cell
def test_a_trace_has_the_states_and_gates_of_every_step(cell):
    layer = make(cell, bidirectional=True)
    _, state = layer(X)
    for way, seen in enumerate(seqloom.trace(layer, X).layers.values()):
        assert seen.y.shape == (3, 6, 8)
        for steps, last in zip(seen.states, tensors(state), strict=True):
            assert steps.shape == (3, 6, *last.shape[2:])
            close(steps[:, 0 if way else -1], last[way])  # a layer that reads backwards ends at the first step
        assert all(gate.shape[:2] == (3, 6) for gate in seen.gates.values())


def test_the_gates_of_a_gru_make_its_states():
    seen = seqloom.trace(make("gru"), X).layers["l0"]
    h = torch.cat([torch.zeros(3, 1, 8), seen.y[:, :-1]], 1)
    z, n = seen.gates["z"], seen.gates["n"]
    assert set(seen.gates) == {"r", "z", "n"} and seen.gates["r"].shape == (3, 6, 8)
    close((1 - z) * n + z * h, seen.y)


def test_the_gates_of_an_lstm_make_its_memory():
    seen = seqloom.trace(make("lstm"), X).layers["l0"]
    h, c = seen.states
    i, f, g, o = (seen.gates[letter] for letter in "ifgo")
    close(f * torch.cat([torch.zeros(3, 1, 8), c[:, :-1]], 1) + i * g, c)
    close(o * torch.tanh(c), h)


def test_the_attention_of_an_attn_rnn_is_a_share_of_its_context():
    a = seqloom.trace(make("attn_rnn", heads=2), X).layers["l0"].gates["a"]
    assert a.shape == (3, 6, 4, 2)  # h, x, h + x, h * x; for each head
    close(a.sum(2), torch.ones(3, 6, 2, dtype=torch.float64))


@pytest.mark.parametrize("dropouts", [Dropouts(recurrent=0.5), Dropouts(zoneout=0.3), Dropouts(weight=0.5)], ids=str)
@each_cell
def test_a_trace_in_training_has_the_noise_of_that_seed(cell, dropouts):
    if dropouts.recurrent and "mask" not in seqloom.Cell.registry[cell].takes:
        pytest.skip("has no product of its state to drop from")
    if dropouts.weight and not set(RECURRENT_WEIGHTS) & set(seqloom.Cell.registry[cell](3, 8).state_dict()):
        pytest.skip("has no recurrent matrix")
    layer = make(cell, bidirectional=True, dropouts=dropouts)
    torch.manual_seed(5)
    expected, _ = layer(X)
    torch.manual_seed(5)
    close(seqloom.trace(layer, X).output, expected)


def test_a_trace_knows_resets_and_time():
    layer, reset, spans = make("ode_gru", bidirectional=True), X[..., 0] > 0, X[..., 1].abs()
    seen = seqloom.trace(layer, X, reset=reset, timespans=spans)
    close(seen.output, layer(X, reset=reset, timespans=spans)[0])


def test_a_trace_can_be_trained_through():
    layer = make("gru")
    seqloom.trace(layer, X).layers["l0"].gates["z"].sum().backward()
    assert layer.weight_ih_l0.grad.any()


@each_cell
def test_an_explanation_goes_through_the_kernels_until_one_fits(cell):
    layer = make(cell, 3, 8, 2, bidirectional=True)
    told = seqloom.explain(layer, X)
    assert [where for where, _ in told.choices] == ["l0", "l0_reverse", "l1", "l1_reverse"]
    for where, choice in told.choices:
        passed = [name for name, _ in choice.rejected]
        assert [*passed, choice.name] == [k.name for k in list_kernels(layer.cells[0].name)][: len(passed) + 1]
        assert f"{where}: {choice.name}" in str(told)
        for name, reason in choice.rejected:
            assert len(reason) > 10
            assert f"not {name}: {reason}" in str(told)


@pytest.mark.parametrize(
    ("options", "call", "reason"),
    [
        ({"dropouts": Dropouts(recurrent=0.5)}, {}, "recurrent dropout"),
        ({"dropouts": Dropouts(zoneout=0.5)}, {}, "zoneout"),
        ({"reset_after": False}, {}, "reset_after"),
        ({}, {"reset": X[..., 0] > 0}, "reset"),
    ],
)
def test_torchs_kernel_says_what_it_does_not_have(options, call, reason):
    layer = make("gru", kernel="aten", **options)
    with pytest.raises(ValueError, match=reason):
        seqloom.explain(layer, X, **call)


@pytest.mark.parametrize("noise", [Dropouts(recurrent=0.5), Dropouts(zoneout=0.5)])
def test_noise_runs_on_the_fast_kernel_too(noise):
    layer, plain = make("gru", dropouts=noise), make("gru")
    for training in (True, False):
        assert seqloom.explain(layer.train(training), X).kernels == seqloom.explain(plain, X).kernels


@each_cell
def test_the_kernel_named_is_the_one_that_runs(cell, monkeypatch):
    layer = make(cell)
    (name,) = seqloom.explain(layer, X).kernels
    kernel = find_kernel(name)
    home = kernel.code if isinstance(kernel.code, types.ModuleType) else type(kernel.code)
    ran, run, run_found = [], home.run, compiled.Found.__call__
    monkeypatch.setattr(home, "run", lambda *args: ran.append(kernel.backend) or run(*args))
    monkeypatch.setattr(compiled.Found, "__call__", lambda *args: ran.append("compiled") or run_found(*args))
    layer(X)
    prepared = layer.__dict__["_plans"].plans.values()
    assert ran + [plan.backend for plan in prepared if plan.backend] == [kernel.backend]


def test_a_kernel_is_asked_for_by_backend_or_by_full_name():
    assert seqloom.explain(make("gru", kernel="loop"), X).kernels == ("any_loop",)
    assert seqloom.explain(make("gru", kernel="any_loop"), X).kernels == ("any_loop",)
    assert seqloom.explain(make("gru", kernel="aten"), X).kernels == ("gru_aten",)


def test_a_layer_without_cells_has_no_kernel_to_explain():
    with pytest.raises(TypeError, match="takes a layer of a cell, such as GRU or AttnRNN, got a TCN"):
        seqloom.explain(seqloom.TCN(3, 4), torch.randn(2, 5, 3))
