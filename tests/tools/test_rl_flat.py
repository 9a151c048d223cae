"""A layer with a flat state gives what the layer gives, for every kind of state."""

import pytest
import torch

import seqloom
from seqloom.core.errors import InputError, UserError
from seqloom.tools.rl.flat import FlatRecurrent

KINDS = [("gru", {}), ("lstm", {"num_layers": 2}), ("attn_rnn", {}), ("ntm", {}), ("lstm", {"batch_first": False})]


@pytest.mark.parametrize(("cell", "settings"), KINDS, ids=str)
def test_a_rollout_in_one_call_equals_its_episodes_one_by_one(cell, settings):
    torch.manual_seed(0)
    layer = seqloom.Recurrent(cell, 3, 8, **{"batch_first": True, **settings})
    flat, x = FlatRecurrent(layer), torch.randn(2, 9, 3)
    starts = torch.zeros(2, 9)
    starts[:, 0] = starts[0, 4] = starts[1, 6] = 1
    whole, end = flat(x, torch.randn(2, flat.state_size), starts)
    for row, cut in ((0, 4), (1, 6)):
        for part, steps in ((x[row, :cut], slice(0, cut)), (x[row, cut:], slice(cut, 9))):
            alone, state = layer(part)
            torch.testing.assert_close(whole[row, steps], alone, atol=1e-5, rtol=1e-5)
        state = state.unsqueeze(1) if isinstance(state, torch.Tensor) else tuple(s.unsqueeze(1) for s in state)
        torch.testing.assert_close(end[row], flat.pack(state)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm", "attn_rnn", "slstm", "ntm"])
@pytest.mark.parametrize("steps", [1, 4])
def test_rows_that_start_at_the_first_step_forget_the_state_and_others_keep_it(cell, steps):
    torch.manual_seed(0)
    layer = seqloom.Recurrent(cell, 3, 8, num_layers=2, batch_first=True)
    flat, x = FlatRecurrent(layer), torch.randn(2, steps, 3)
    _, kept = flat(torch.randn(2, 3, 3), torch.zeros(2, flat.state_size), torch.eye(3)[:1].expand(2, 3))
    starts = torch.zeros(2, steps)
    starts[1, 0] = 1
    y, _ = flat(x, kept, starts)
    torch.testing.assert_close(y[1], layer(x[1])[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(y[:1], flat(x[:1], kept[:1])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm", "ntm"])
def test_a_rollout_continues_from_the_flat_state(cell):
    torch.manual_seed(0)
    flat = FlatRecurrent(seqloom.Recurrent(cell, 3, 8, num_layers=2, batch_first=True))
    x, first = torch.randn(2, 7, 3), torch.ones(2, 1)
    whole, end = flat(x, torch.zeros(2, flat.state_size), torch.cat([first, torch.zeros(2, 6)], 1))
    y, state = flat(x[:, :1], torch.zeros(2, flat.state_size), first)
    parts = [y]
    for step in x[:, 1:].split(1, 1):
        y, state = flat(step, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state, end, atol=1e-5, rtol=1e-5)


def test_a_start_takes_the_learned_initial_state():
    layer = seqloom.GRU(3, 4, batch_first=True, learn_initial_state=True)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "weight" not in name and "bias" not in name:
                parameter.fill_(0.5)
    flat, x = FlatRecurrent(layer), torch.randn(1, 2, 3)
    y, _ = flat(x, torch.zeros(1, 4), torch.tensor([[True, False]]))
    torch.testing.assert_close(y, layer(x)[0], atol=1e-6, rtol=1e-6)


def test_a_layer_that_reads_backwards_is_refused():
    with pytest.raises(UserError, match="bidirectional=True, but an agent cannot read the steps to come"):
        FlatRecurrent(seqloom.GRU(3, 4, bidirectional=True))


def test_a_state_of_the_wrong_size_is_named():
    flat = FlatRecurrent(seqloom.LSTM(3, 4, batch_first=True))
    with pytest.raises(InputError, match=r"the state has shape \(2, 4\), expected \(2, 8\)"):
        flat(torch.randn(2, 5, 3), torch.zeros(2, 4))
