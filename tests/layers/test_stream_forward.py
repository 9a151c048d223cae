"""Steps of a stream that the CPU engine leaves to `forward`: values, errors and hooks."""

import pytest
import torch
from streams import close, make, whole
from torch.utils.flop_counter import FlopCounterMode

import seqloom
from seqloom.kernels.cpu.step import load_step
from seqloom.kernels.heuristics import STEP_MOST_GATED_ROWS
from seqloom.layers.recurrent.streaming import why_not_stream

pytestmark = pytest.mark.skipif(isinstance(load_step(), str), reason=str(load_step()))


def test_frozen_weights_need_no_mode(ran):
    layer, x = make().requires_grad_(False), torch.randn(2, 3, dtype=torch.float64)
    layer.step(x)
    assert not ran
    layer.step(x.requires_grad_())[0].sum().backward()
    assert ran and x.grad.any()


def test_a_step_with_gradients_has_them(ran):
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        _, now = layer.step(x)
    layer.step(x, now)[0].sum().backward()
    assert ran and layer.weight_q_l0.grad.any()


@pytest.mark.parametrize(
    "settings",
    [
        {"cell": "min_gru"},
        {"cell": "gru", "reset_after": False},
        {"cell": "lstm", "proj_size": 4},
        {"cell": "rnn", "nonlinearity": "gelu"},
        {"cell": "gru", "kernel": "loop"},
        {"cell": "gru", "check": True},
        {"cell": "gru", "dropouts": seqloom.Dropouts(zoneout=0.3)},
        {"cell": "lstm", "dropouts": seqloom.Dropouts(zoneout=(0.0, 0.3))},
    ],
)
def test_steps_that_the_engine_does_not_support_go_through_forward(settings, ran):
    layer, x = make(**settings), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        actual = layer.step(x)
    assert ran and why_not_stream(layer)
    close(actual, whole(layer, x))


def test_noise_is_for_training_alone(ran):
    x = torch.randn(2, 3, dtype=torch.float64)
    for noise in (
        {"dropout": 0.5},
        {"dropouts": seqloom.Dropouts(recurrent=0.5)},
        {"dropouts": seqloom.Dropouts(weight=0.5)},
    ):
        layer = make("gru", 3, 8, 2, **noise)
        with torch.no_grad():
            y, _ = layer.step(x)
            assert not ran
            assert not torch.equal(layer.train().step(x)[0], y)
            assert ran.pop()
            assert torch.equal(layer.eval().step(x)[0], y)


def test_more_rows_than_the_engine_takes_go_through_forward(ran):
    layer, x = make(), torch.randn(STEP_MOST_GATED_ROWS + 1, 3, dtype=torch.float64)
    with torch.no_grad():
        close(layer.step(x), whole(layer, x))
        assert layer.step(x[:0])[0].shape == (0, 8)
    assert ran


def test_hooks_of_a_layer_run_for_every_step(ran):
    layer, x, seen = make(dtype=torch.float32), torch.randn(2, 3), []
    with torch.no_grad():
        for listen in (layer.register_forward_hook, torch.nn.modules.module.register_module_forward_hook):
            handle = listen(lambda *_: seen.append(1))
            layer.step(x)
            handle.remove()
        assert len(seen) == 2
        with FlopCounterMode(display=False) as flops:
            layer.step(x)
        assert flops.get_total_flops() > 0
        with torch.autocast("cpu", torch.bfloat16):
            assert layer.step(x)[0].dtype == torch.bfloat16
        each = torch.func.vmap(lambda row: layer.step(row)[0])(x)
        torch.testing.assert_close(each, layer.step(x)[0])
        slope = torch.func.jvp(lambda x: layer.step(x)[0], (x,), (torch.ones_like(x),))[1]
    assert slope.any()


def test_a_layer_with_a_forward_of_its_own_steps_with_it():
    class Louder(seqloom.GRU):
        def forward(self, *args, **kwargs):
            y, state = super().forward(*args, **kwargs)
            return 2 * y, state

    layer, x = Louder(3, 8), torch.randn(2, 3)
    with torch.no_grad():
        y, state = layer.step(x)
        assert torch.equal(y, 2 * state[0])
        layer = seqloom.GRU(3, 8)
        layer.step(x)
        layer.forward = lambda *_, **__: (x.unsqueeze(0), None)
        assert torch.equal(layer.step(x)[0], x)


def test_a_compiled_step_is_one_graph_with_the_same_values():
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        actual = torch.compile(layer.step, fullgraph=True, backend="eager")(x)
        close(actual, layer.step(x))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_mistakes_are_named_as_forward_names_them(cell):
    layer, x, h = make(cell, dtype=torch.float32), torch.randn(2, 3), torch.randn(1, 2, 8)
    others = [h[0], h[..., :5], h.double(), (h, h[:, :1]), (h, h, h), (h, h.double()), h.to("meta"), "h"]
    calls = [(torch.randn(2, 4), None), (torch.randn(2, 1, 3), None), (x.double(), None), (x.to("meta"), None)]
    for call in [*calls, *((x, hx) for hx in others)]:
        with pytest.raises((ValueError, TypeError, AttributeError)) as expected:
            layer.step(*call)
        with pytest.raises(type(expected.value)) as raised, torch.no_grad():
            layer.step(*call)
        assert str(raised.value) == str(expected.value)


def test_an_explanation_says_what_a_step_does():
    x = torch.randn(2, 5, 3)
    assert "step: one call of the CPU engine" in str(seqloom.explain(seqloom.GRU(3, 8), x))
    text = str(seqloom.explain(seqloom.GRU(3, 8, kernel="loop"), x))
    assert "step: a sequence of one step; kernel='loop'" in text
    assert "step: none, a bidirectional" in str(seqloom.explain(seqloom.GRU(3, 8, bidirectional=True), x))
