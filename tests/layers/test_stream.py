"""Steps of a stream on the CPU engine: they match the whole sequence and behave like `forward`."""

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from streams import close, make, whole
from torch.nn.utils import parametrize

from seqloom.kernels.cpu.engine import list_libraries
from seqloom.kernels.cpu.step import CELLS, load_step
from seqloom.kernels.heuristics import STEP_MOST_ROWS
from seqloom.layers.recurrent.layer import Recurrent

pytestmark = pytest.mark.skipif(isinstance(load_step(), str), reason=str(load_step()))
each_cell = pytest.mark.parametrize("cell", sorted(CELLS))


@pytest.mark.parametrize(
    ("cell", "settings"),
    [*((cell, {}) for cell in sorted(CELLS)), *((c, {"bias": False}) for c in ("rnn", "gru", "lstm"))],
)
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 4), (3, 5, 2, 20), (STEP_MOST_ROWS, 33, 1, 36), (0, 128, 2, 64), (2, 24, 3, 24)]
)
def test_a_stream_without_gradients_matches_the_whole_sequence(cell, settings, sizes, monkeypatch):
    B, D, layers, H = sizes  # B = 0: unbatched
    layer = make(cell, D, H, layers, **settings)
    x = torch.randn(7, *[B] * bool(B), D, dtype=torch.float64)
    y, state = layer(x)
    monkeypatch.setattr(Recurrent, "run_with", None)  # nothing but the engine is left
    actual, now = [], None
    with torch.no_grad():
        for t in range(7):
            y_t, now = layer.step(x[t], now)
            actual.append(y_t)
    close((torch.stack(actual), now), (y, state))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm", "ln_gru", "ln_lstm"])
@torch.no_grad()
def test_rows_that_share_the_weights_match_single_ones(cell, dtype, monkeypatch):
    for D, H in ((3, 5), (33, 36), (16, 64)):
        layer = make(cell, D, H, 2, dtype=dtype)
        x = torch.randn(11, D, dtype=dtype)
        _, state = layer.step(x)
        with monkeypatch.context() as patch:
            patch.setattr(Recurrent, "run_with", None)
            together = layer.step(x, state)
            for i in range(11):
                one = layer.step(x[i : i + 1], layer.select(state, torch.tensor([i])))
                rows = together[0][i : i + 1], layer.select(together[1], torch.tensor([i]))
                torch.testing.assert_close(one, rows)


@each_cell
@pytest.mark.parametrize("batch_first", [False, True])
@torch.no_grad()
def test_a_sequence_of_one_step_is_a_step(cell, batch_first, monkeypatch):
    layer = make(cell, 5, 8, 2, batch_first=batch_first)
    x, time = torch.randn(3, 5, dtype=torch.float64), int(batch_first)
    y, state = layer.step(x)
    for kind in ("reset", "lengths"):  # what a step does not know goes the whole way
        given = torch.full((3,), 1) if kind == "lengths" else torch.zeros(3, dtype=torch.bool).unsqueeze(time)
        close(layer(x.unsqueeze(time), **{kind: given}), (y.unsqueeze(time), state))
    monkeypatch.setattr(Recurrent, "run_with", None)
    close(layer(x.unsqueeze(time)), (y.unsqueeze(time), state))
    close(layer(x.unsqueeze(time), state), (layer.step(x, state)[0].unsqueeze(time), layer.step(x, state)[1]))
    alone, end = layer.step(x[0])
    close(layer(x[:1]), (alone.unsqueeze(0), end))


@each_cell
def test_the_steps_of_a_stream_are_as_exact_as_the_loop(cell):
    far = near = 0.0
    for seed in range(4):
        torch.manual_seed(seed)
        x, now, actual = torch.randn(40, 2, 7), None, []
        layer = make(cell, 7, 36, dtype=torch.float32)
        with torch.no_grad():
            for x_t in x:
                y_t, now = layer.step(x_t, now)
                actual.append(y_t)
            layer.kernel = "loop"
            loop, _ = layer(x)
            exact, _ = layer.double()(x.double())
        last_bit = torch.finfo(torch.float32).eps * exact  # is allowed to both
        far += (torch.stack(actual).double() - exact).square().sum().item()
        near += ((loop.double() - exact).square() + last_bit.square()).sum().item()
    assert far <= 2**2 * near


@pytest.mark.parametrize(
    "settings",
    [
        {"cell": "attn_rnn", "heads": 2, "context": ("h", "x"), "norm": False},
        {"cell": "attn_rnn", "context": ("h*x", "h"), "initial": 0.5},
        {"cell": "attn_rnn", "learn_initial_state": True},
        {"cell": "lstm", "learn_initial_state": True},
        {"cell": "rnn", "nonlinearity": "relu"},
    ],
)
def test_the_settings_of_a_cell_reach_the_engine(settings, ran):
    layer, x = make(**settings), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()
        actual = layer.step(x)
    assert not ran
    close(actual, whole(layer, x))


def set_data(layer):
    layer.weight_q_l0.data = torch.randn(8, 8, dtype=torch.float64)


def turn_around(layer):
    layer.weight_q_l0.data = layer.weight_q_l0.data.t()


def replace(layer):
    layer.weight_g_l0 = torch.nn.Parameter(torch.randn(8, 16, dtype=torch.float64))


def learn(layer):
    layer(torch.randn(4, 1, 3, dtype=torch.float64))[0].sum().backward()
    torch.optim.SGD(layer.parameters(), 0.5).step()


def load(layer):
    layer.load_state_dict({name: torch.randn_like(w) for name, w in layer.state_dict().items()})


def load_others(layer):
    layer.load_state_dict({name: torch.randn_like(w) for name, w in layer.state_dict().items()}, assign=True)


def other_heads(layer):
    layer.cells[0].heads = 2


def other_start(layer):
    layer.cells[0].initial = 0.7


def constrain(layer):
    parametrize.register_parametrization(layer, "weight_q_l0", torch.nn.Softplus())


CHANGES = [set_data, turn_around, replace, learn, load, load_others, other_heads, other_start, constrain]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_layer_is_seen_by_the_next_stream(change):
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        before = layer.step(x)
    change(layer)
    with torch.no_grad():
        after = layer.step(x)
    close(after, whole(layer, x))
    assert (after[0] - before[0]).abs().max() > 1e-6


@pytest.mark.parametrize("change", [set_data, replace, learn, load, load_others, constrain])
def test_a_change_of_the_weights_is_seen_in_the_middle_of_a_stream(change):
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        _, now = layer.step(x)
    change(layer)
    with torch.no_grad():
        close(layer.step(x, now), whole(layer, x, now))


def test_a_layer_may_be_moved_between_types():
    layer = make(dtype=torch.float32)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        x = torch.randn(2, 3, dtype=dtype)
        with torch.no_grad():
            y, state = layer.to(dtype).step(x)
        assert y.dtype == state.dtype == dtype
        torch.testing.assert_close(y, whole(layer, x)[0])


def test_weights_given_for_one_call_are_those_used():
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    others = {name: torch.randn_like(w) for name, w in layer.state_dict().items()}

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer.step(x)

    with torch.no_grad():
        before = layer.step(x)
        actual = torch.func.functional_call(Step(), {f"layer.{name}": w for name, w in others.items()}, (x,))
        close(layer.step(x), before)
    layer.load_state_dict(others)
    close(actual, whole(layer, x))


def test_a_copy_of_a_layer_that_has_streamed_streams_by_itself():
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        before = layer.step(x)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            close(other.step(x), before)
            other.bias_o_l0.add_(1.0)
            close(other.step(x), whole(other, x))
        close(layer.step(x), before)


def test_threads_may_share_a_layer():
    layer, xs = make("lstm", 16, 64, 2), torch.randn(8, 50, 1, 16, dtype=torch.float64)

    def stream(x):
        now, actual = None, []
        with torch.no_grad():
            for x_t in x:
                y_t, now = layer.step(x_t, now)
                actual.append(y_t)
        return torch.stack(actual), now

    with ThreadPoolExecutor(4) as pool:
        for x, actual in zip(xs, pool.map(stream, xs), strict=True):
            close(actual, layer(x))


def test_strided_inputs_and_states_are_read_as_they_are(ran):
    layer = make("lstm", 3, 8, 2)
    x, states = torch.randn(3, 2, dtype=torch.float64).t(), torch.randn(2, 2, 8, 2, dtype=torch.float64).unbind(-1)
    with torch.no_grad():
        actual = layer.step(x, states)
    assert not ran
    close(actual, whole(layer, x, states))


def test_what_a_step_returns_is_memory_of_its_own():
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        _, before = layer.step(x)
        kept = before.clone()
        y, state = layer.step(x, before)
        expected = state.clone()
        y.zero_()
        layer.step(x, state)[1].zero_()
    assert torch.equal(before, kept) and torch.equal(state, expected)


def test_a_stream_may_go_in_and_out_of_inference_mode(ran):
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    with torch.inference_mode():
        y, now = layer.step(x)
        assert y.is_inference() and now.is_inference()
    with torch.no_grad():
        y, now = layer.step(x, now)
        assert not y.is_inference() and not now.is_inference()
    assert not ran


def test_another_default_device_does_not_reach_a_step(ran):
    layer, x = make(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad(), torch.device("meta"):
        y, now = layer.step(x)
        y, now = layer.step(x, now)
    assert not ran
    assert y.device.type == now.device.type == "cpu"


@pytest.mark.long  # tests/kernels/test_every_kernel.py runs the same builds for whole sequences
@pytest.mark.parametrize("capability", [file.stem.removeprefix("engine_") for file in list_libraries()[:0:-1]])
def test_a_step_is_correct_on_older_processors(capability):
    again = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "(whole or exact) and (gru or attn_rnn)",
    ]
    subprocess.run(again, check=True, env=os.environ | {"ATEN_CPU_CAPABILITY": capability})
