"""Wavefront execution without a GPU matches running one layer after the other."""

from contextlib import contextmanager

import pytest
import torch

import seqloom
from seqloom.layers.recurrent.gpu import wavefront
from seqloom.layers.recurrent.gpu.streams import StreamContext, pass_to_stream

B, T, D, H = 4, 21, 5, 8


@pytest.fixture(autouse=True)
def _without_plans(monkeypatch):
    """Run every call as one that has no plan: plans use no streams."""
    monkeypatch.setattr("seqloom.layers.recurrent.layer.try_plan", lambda *_: None)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return lambda name, **how: seqloom.Recurrent(name, D, H, 3, dtype=torch.float64, **how)


def compute_results(layer, x, hx=None, **aside):
    torch.manual_seed(1)
    y, end = layer(x, hx, **aside)
    ends = end if isinstance(end, tuple) else (end,)
    leaves = [t for t in (x, *(hx if isinstance(hx, tuple) else (hx,)), *layer.parameters()) if t is not None]
    loss = sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in (y, *ends))
    return [y, *ends, *torch.autograd.grad(loss, leaves, allow_unused=True)]


def both(layer, x, hx, monkeypatch, pieces, **aside):
    """Run the layers in order and as a wavefront; return the number of scans of the wavefront."""
    plain, scans = compute_results(layer, x, hx, **aside), []
    run = wavefront.run_job
    monkeypatch.setattr(wavefront, "run_job", lambda *given: (scans.append(given[1].x.shape[1]), run(*given))[1])
    monkeypatch.setattr(wavefront, "assign_streams", _lending)
    monkeypatch.setattr(wavefront, "CHUNK_STEPS", -(-T // pieces))
    monkeypatch.setattr(wavefront, "leaves_room", lambda *_: True)
    monkeypatch.setattr("seqloom.layers.recurrent.layer.should_use_wavefront", lambda *_: True)
    for a, b in zip(compute_results(layer, x, hx, **aside), plain, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, rtol=1e-9, atol=1e-11)
    return scans


@contextmanager
def _lending(works):
    yield [(StreamContext(), pass_to_stream(work, None)) for work in works]


@pytest.mark.parametrize("name", ["attn_rnn", "lstm", "ode_gru"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_wavefront_matches_running_the_layers_in_order(layer, name, batch_first, monkeypatch):
    one = layer(name, batch_first=batch_first, learn_initial_state=True)
    x = torch.randn((B, T, D) if batch_first else (T, B, D), dtype=torch.float64, requires_grad=True)
    aside = {"lengths": [T, 0, 13, 6], "reset": torch.rand(x.shape[:2]) < 0.2}
    if name == "ode_gru":
        aside["timespans"] = torch.rand(x.shape[:2], dtype=torch.float64)
    assert both(one, x, None, monkeypatch, pieces=4, **aside) == [6] * 9 + [3] * 3


def test_a_wavefront_starts_from_the_given_states(layer, monkeypatch):
    x = torch.randn(T, B, D, dtype=torch.float64, requires_grad=True)
    hx = tuple(torch.randn(3, B, H, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert len(both(layer("lstm"), x, hx, monkeypatch, pieces=3)) == 9


def test_the_noise_of_a_wave_is_drawn_for_the_whole_sequence(layer, monkeypatch):
    x = torch.randn(T, B, D, dtype=torch.float64, requires_grad=True)
    noise = seqloom.Dropouts(recurrent=0.2, zoneout=0.2, weight=0.2)
    assert len(both(layer("attn_rnn", dropouts=noise), x, None, monkeypatch, pieces=2)) == 6


def test_dropout_between_the_layers_of_a_wave_drops(layer, monkeypatch):
    x = torch.randn(T, B, D, dtype=torch.float64)
    for name, value in (("CHUNK_STEPS", 6), ("leaves_room", lambda *_: True), ("assign_streams", _lending)):
        monkeypatch.setattr(wavefront, name, value)
    monkeypatch.setattr("seqloom.layers.recurrent.layer.should_use_wavefront", lambda *_: True)
    one = layer("gru", dropout=1.0)
    dropped = one(x)[0]
    assert torch.equal(dropped, one(torch.randn_like(x))[0])
    assert not torch.equal(one.eval()(x)[0], dropped)


def test_a_kernel_that_is_not_ours_takes_a_sequence_in_one_piece(layer, monkeypatch):
    x = torch.randn(T, B, D, dtype=torch.float64)
    scans, run = [], wavefront.run_job
    monkeypatch.setattr(wavefront, "run_job", lambda *given: (scans.append(given[1].x.shape[1]), run(*given))[1])
    monkeypatch.setattr(wavefront, "CHUNK_STEPS", 6)
    monkeypatch.setattr("seqloom.layers.recurrent.layer.should_use_wavefront", lambda *_: True)
    layer("gru")(x)
    assert scans == [T] * 3


def test_long_sequences_of_few_rows_are_a_wave_on_a_gpu_where_the_host_keeps_up(monkeypatch):
    one, other = seqloom.AttnRNN(8, 128).cell_at(0), seqloom.GRU(8, 128).cell_at(0)
    x = torch.empty(64, 2_048, 1)
    should_use = wavefront.should_use_wavefront
    assert not should_use(one, x, 2)  # it is on the CPU
    monkeypatch.setattr(wavefront, "can_use_streams", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert should_use(one, x, 2) and not should_use(one, x, 1)
    assert not should_use(other, x, 2)
    assert not should_use(one, x[:, 1:], 2) and not should_use(one, torch.empty(513, 2_048, 1), 2)
