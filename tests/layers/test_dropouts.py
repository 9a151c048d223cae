"""Noise that torch.nn's recurrent layers do not have: in training, seeded, scaled, off in eval mode."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import seqloom
import seqloom.cells  # the registry, for the parametrisation
from seqloom import Dropouts
from seqloom.layers.dropouts import RECURRENT_WEIGHTS

CELLS = seqloom.Cell.registry
X = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(3))
NOISES = {
    "recurrent": Dropouts(recurrent=0.5),
    "zoneout": Dropouts(zoneout=0.5),
    "weight": Dropouts(weight=0.5),
}
MASKED = sorted(name for name, cell in CELLS.items() if "mask" in cell.takes)
DROPPING = sorted(name for name, kind in CELLS.items() if set(RECURRENT_WEIGHTS) & set(kind(3, 8).state_dict()))
PAIRS = [("recurrent", c) for c in MASKED] + [("zoneout", c) for c in sorted(CELLS)] + [("weight", c) for c in DROPPING]


def make(cell, *args, **kwargs):
    torch.manual_seed(0)
    return seqloom.Recurrent(cell, *args or (3, 8), batch_first=True, **kwargs)


def memory(**kwargs):
    """Return a layer that ignores its input and keeps its state: h' = relu(h)."""
    layer = make("rnn", 1, 1000, bias=False, nonlinearity="relu", **kwargs)
    with torch.no_grad():
        layer.weight_ih_l0.zero_()
        layer.weight_hh_l0.copy_(torch.eye(1000))
    return layer


@pytest.mark.parametrize(("noise", "cell"), PAIRS)
def test_noise_is_active_in_training(noise, cell):
    layer = make(cell, dropouts=NOISES[noise])
    assert not torch.allclose(layer(X)[0], layer(X)[0])


@pytest.mark.parametrize(("noise", "cell"), PAIRS)
def test_noise_is_the_same_after_the_same_seed(noise, cell):
    layer = make(cell, 3, 8, 2, bidirectional=True, dropout=0.3, dropouts=NOISES[noise])
    results = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        results.append(layer(X)[0])
    assert torch.equal(results[0], results[2])
    assert not torch.allclose(results[0], results[1])


@pytest.mark.parametrize(("noise", "cell"), [pair for pair in PAIRS if pair[0] != "zoneout"])
def test_dropouts_are_off_in_eval_mode(noise, cell):
    assert torch.equal(make(cell, dropouts=NOISES[noise]).eval()(X)[0], make(cell)(X)[0])


def test_recurrent_dropout_has_one_mask_for_all_steps():
    y, _ = memory(dropouts=Dropouts(recurrent=0.5))(torch.zeros(2, 4, 1), torch.ones(1, 2, 1000))
    dead = y[:, 0] == 0
    for t in range(4):
        assert torch.equal(y[:, t] == 0, dead)
        assert (y[:, t][~dead] == 2.0 ** (t + 1)).all()  # what stays is scaled by 1 / (1 - 0.5), at every step


def test_recurrent_dropout_drops_the_rate_asked_for_in_each_row_on_its_own():
    y, _ = memory(dropouts=Dropouts(recurrent=0.2))(torch.zeros(2, 1, 1), torch.ones(1, 2, 1000))
    dead = y[:, 0] == 0
    assert abs(dead.float().mean() - 0.2) < 0.04  # 4 standard deviations
    assert not torch.equal(dead[0], dead[1])
    torch.testing.assert_close(y[:, 0][~dead], torch.tensor(1.25).expand(int((~dead).sum())))


def test_recurrent_dropout_spares_the_memory_itself():
    layer = make("gru", update_bias=50.0, dropouts=Dropouts(recurrent=0.5))  # z = 1: h' = h
    h0 = torch.randn(1, 4, 8)
    torch.testing.assert_close(layer(X, h0)[1], h0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cell", ["rnn", "gru", "attn_rnn"])
def test_zoneout_of_one_keeps_the_state(cell, training):
    layer = make(cell, dropouts=Dropouts(zoneout=1.0)).train(training)
    h0 = torch.randn(1, 4, 8)
    y, state = layer(X, h0)
    assert torch.equal(state, h0)
    assert torch.equal(y, h0[0].unsqueeze(1).expand(4, 6, 8))


def test_zoneout_in_training_takes_each_unit_old_or_new():
    layer = make("gru", 3, 1000, dropouts=Dropouts(zoneout=0.2))
    x, h0 = X[:, :1], torch.randn(1, 4, 1000)
    new = make("gru", 3, 1000)(x, h0)[0]
    y, state = layer(x, h0)
    kept = y[:, 0] == h0[0]
    torch.testing.assert_close(y[:, 0], torch.where(kept, h0[0], new[:, 0]))
    assert abs(kept.float().mean() - 0.2) < 0.026  # 4 standard deviations
    assert torch.equal(state[0], y[:, 0])


def test_zoneout_draws_a_new_mask_at_every_step():
    layer = make("gru", 3, 1000, dropouts=Dropouts(zoneout=0.5))
    y, _ = layer(X)
    kept = y[:, 1:] == y[:, :-1]
    assert not torch.equal(kept[:, 0], kept[:, 1])


def test_zoneout_in_eval_mode_is_its_mean():
    x, h0 = X[:, :1], torch.randn(1, 4, 8)
    new = make("gru")(x, h0)[0]
    y, _ = make("gru", dropouts=Dropouts(zoneout=0.2)).eval()(x, h0)
    torch.testing.assert_close(y[:, 0], 0.2 * h0[0] + 0.8 * new[:, 0])


@pytest.mark.parametrize("stays", [0, 1], ids=["h", "c"])
def test_zoneout_of_an_lstm_has_a_rate_for_h_and_one_for_c(stays):
    given = (torch.randn(1, 4, 8), torch.randn(1, 4, 8))
    _, after = make("lstm", dropouts=Dropouts(zoneout=(1.0 - stays, 0.0 + stays)))(X, given)
    assert torch.equal(after[stays], given[stays])
    assert not torch.allclose(after[1 - stays], given[1 - stays])


@pytest.mark.parametrize("kernel", ["auto", "loop"])
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_weight_dropout_is_one_draw_of_the_recurrent_matrix_a_call(cell, kernel):
    layer = make(cell, kernel=kernel, dropouts=Dropouts(weight=0.5))
    torch.manual_seed(5)
    y, _ = layer(X)
    torch.manual_seed(5)
    holes = F.dropout(layer.weight_hh_l0, 0.5)
    torch.testing.assert_close(y, functional_call(make(cell), {"weight_hh_l0": holes}, (X,))[0])


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_weight_dropout_lets_the_gradient_through_where_nothing_was_dropped(cell):
    layer = make(cell, dropouts=Dropouts(weight=0.5))
    torch.manual_seed(5)
    layer(X)[0].sum().backward()
    torch.manual_seed(5)
    dropped = F.dropout(torch.ones_like(layer.weight_hh_l0), 0.5) == 0
    assert not layer.weight_hh_l0.grad[dropped].any()
    assert layer.weight_hh_l0.grad[~dropped].all()


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_weight_dropout_is_in_every_layer_and_direction(cell):
    layer = make(cell, 3, 8, 2, bidirectional=True, dropouts=Dropouts(weight=1.0))
    plain = make(cell, 3, 8, 2, bidirectional=True)
    zeros = {n: torch.zeros_like(w) for n, w in plain.named_parameters() if "weight_hh" in n}
    assert len(zeros) == 4
    torch.testing.assert_close(layer(X)[0], functional_call(plain, zeros, (X,))[0])


def test_weight_dropout_stays_on_the_fast_path():
    plain, dropped = make("gru"), make("gru", dropouts=Dropouts(weight=0.5))
    assert seqloom.explain(dropped, X).kernels == seqloom.explain(plain, X).kernels != ("any_loop",)


@pytest.mark.parametrize("cell", ["ln_gru", "ln_lstm"])
def test_layer_norm_makes_the_scale_of_a_matrix_irrelevant(cell):
    layer = make(cell, 3, 8, dtype=torch.float64)
    x = 100 * X.double()  # far above the epsilon of the norm
    before = layer(x)[0]
    with torch.no_grad():
        layer.weight_ih_l0.mul_(10)
    torch.testing.assert_close(layer(x)[0], before, rtol=0, atol=1e-5)
    with torch.no_grad():
        layer.scale_ih_l0.mul_(10)
    assert not torch.allclose(layer(x)[0], before, atol=1e-2)
