"""Initial values of a layer: learned first states, gate biases, schemes for the weights."""

import math

import pytest
import torch

import seqloom
import seqloom.cells  # the registry, for the parametrisation
from seqloom import Init

H = 256
ENDS = ["l0", "l0_reverse", "l1", "l1_reverse"]
X = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(3))
each_cell = pytest.mark.parametrize("cell", sorted(seqloom.Cell.registry))


def make(cell, *args, **kwargs):
    torch.manual_seed(0)
    return seqloom.Recurrent(cell, *args or (3, 8), batch_first=True, **kwargs)


def both(cell, **kwargs):
    return make(cell, 3, H, 2, bidirectional=True, **kwargs)


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def learned(layer):
    return {n: p for n, p in layer.named_parameters() if n.startswith("initial_")}


@each_cell
def test_a_learned_first_state_is_a_parameter_that_gets_a_gradient(cell):
    layer = make(cell, learn_initial_state=True, bidirectional=True)
    y, state = layer(X)
    actual = learned(layer)
    assert len(actual) == 2 * len(tensors(state))
    assert set(actual) <= set(layer.state_dict())
    y.square().sum().backward()
    moved = {name for name, p in actual.items() if p.grad is not None and p.grad.any()}
    assert any(name.endswith("_reverse") for name in moved) and any(name.endswith("_l0") for name in moved)
    if "not read" not in seqloom.Cell.registry[cell].__doc__:  # a state that is the output alone has no gradient
        assert {"initial_0_l0", "initial_0_l0_reverse"} <= moved


@each_cell
def test_a_learned_first_state_starts_where_the_fixed_one_is(cell):
    # rounding: a prepared call multiplies the input in the engine; the weights of ntm over rows are learned as logits,
    # which cannot be exactly 0 and 1
    off = 3e-4 if cell == "ntm" else 1e-6
    torch.testing.assert_close(make(cell, learn_initial_state=True)(X)[0], make(cell)(X)[0], rtol=1e-6, atol=off)


@pytest.mark.parametrize("cell", ["gru", "lstm", "attn_rnn"])
def test_a_learned_first_state_is_used_unless_one_is_given(cell):
    layer = make(cell, learn_initial_state=True)
    with torch.no_grad():
        for p in learned(layer).values():
            p.uniform_(-1, 1)
    rows = [p.expand(1, 4, -1) for p in learned(layer).values()]
    given = tuple(rows) if len(rows) > 1 else rows[0]
    torch.testing.assert_close(layer(X)[0], layer(X, given)[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(layer(X, given)[0], make(cell)(X, given)[0], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(layer(X)[0], make(cell)(X)[0])


def test_a_learned_first_state_is_the_last_of_a_row_without_steps():
    layer = make("gru", learn_initial_state=True)
    with torch.no_grad():
        layer.initial_0_l0.uniform_(-1, 1)
    _, state = layer(X, lengths=[0, 6, 6, 6])
    assert torch.equal(state[0, 0], layer.initial_0_l0)


def gate(layer, end, name, index):
    return getattr(layer, f"{name}_{end}")[index * H : (index + 1) * H].detach()


@pytest.mark.parametrize(
    ("cell", "setting", "name", "index"),
    [
        ("lstm", "forget_bias", "bias_ih", 1),
        ("ln_lstm", "forget_bias", "bias_ih", 1),
        ("min_lstm", "forget_bias", "bias_ih", 0),
        ("gru", "update_bias", "bias_ih", 1),
        ("ln_gru", "update_bias", "bias_ih", 1),
        ("ode_gru", "update_bias", "bias_ih", 1),
        ("attn_rnn", "gate_bias", "bias_g", 0),
    ],
)
@pytest.mark.parametrize("scheme", ["default", "orthogonal"])
def test_a_gate_bias_is_set_in_every_layer_and_direction(cell, setting, name, index, scheme):
    layer = both(cell, init=Init(scheme), **{setting: 2.5})
    plain = both(cell, init=Init(scheme))
    for end in ENDS:
        assert (gate(layer, end, name, index) == 2.5).all()
        if name == "bias_ih" and cell != "min_lstm":
            assert not gate(layer, end, "bias_hh", index).any()  # the two add up
    changed = [n for n, p in layer.named_parameters() if not torch.equal(p, plain.get_parameter(n))]
    assert changed and all(n.startswith("bias") for n in changed)


@pytest.mark.parametrize(
    ("cell", "name", "keeps", "sign", "writes"),
    [
        ("lstm", "bias_ih", 1, 1, 0),
        ("ln_lstm", "bias_ih", 1, 1, 0),
        ("min_lstm", "bias_ih", 0, 1, 1),
        ("gru", "bias_ih", 1, 1, None),
        ("ln_gru", "bias_ih", 1, 1, None),
        ("ode_gru", "bias_ih", 1, 1, None),
        ("attn_rnn", "bias_g", 0, -1, None),
        ("min_gru", "bias_ih", 0, -1, None),
    ],
)
def test_chrono_draws_memories_of_all_lengths_up_to_the_longest(cell, name, keeps, sign, writes):
    layer = both(cell, init=Init(chrono=100))
    biases = torch.stack([sign * gate(layer, end, name, keeps) for end in ENDS])
    spans = biases.exp()
    assert spans.min() >= 1 and spans.max() <= 99
    assert (spans.mean(1) - 50).abs().max() < 4 * 98 / math.sqrt(12 * H)  # uniform: 4 standard deviations
    assert len({float(s) for s in spans[:, 0]}) == 4  # each layer and direction draws its own
    if writes is not None:
        assert torch.equal(torch.stack([gate(layer, end, name, writes) for end in ENDS]), -biases)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "ln_gru", "ntm", "rnn_attention"])
def test_orthogonal_makes_the_recurrent_block_of_each_gate_orthogonal(cell):
    layer = make(cell, 3, 8, 2, bidirectional=True, init=Init("orthogonal"))
    for end in ENDS:
        for block in getattr(layer, f"weight_hh_{end}").split(8):
            torch.testing.assert_close(block @ block.T, torch.eye(8), rtol=0, atol=1e-5)


SPREAD = {"xavier": lambda D: math.sqrt(2 / (D + H)), "orthogonal": lambda D: math.sqrt(2 / (D + H))}
SPREAD |= {"he": lambda D: math.sqrt(2 / D), "linear": lambda D: math.sqrt(1 / (3 * D))}


@pytest.mark.parametrize("scheme", sorted(SPREAD))
def test_a_scheme_gives_each_gates_block_its_spread(scheme):
    layer = both("gru", init=Init(scheme))
    for end in ENDS:
        weight = getattr(layer, f"weight_ih_{end}")
        for block in weight.split(H):
            expected = SPREAD[scheme](weight.shape[1])
            assert abs(block.std() / expected - 1) < 0.1 and abs(block.mean()) < 0.1 * expected


@pytest.mark.parametrize("scheme", ["xavier", "he", "orthogonal"])
def test_a_scheme_starts_biases_at_zero(scheme):
    layer = both("lstm", init=Init(scheme))
    assert not any(p.any() for n, p in layer.named_parameters() if n.startswith("bias"))


@pytest.mark.parametrize("scheme", sorted(SPREAD))
def test_every_cell_can_start_from_every_scheme(scheme):
    for name, kind in seqloom.Cell.registry.items():
        if kind.__module__.startswith("seqloom.cells."):
            values = torch.cat([p.detach().flatten() for p in make(name, init=Init(scheme)).parameters()])
            assert values.isfinite().all() and values.abs().max() > 0, name


def test_linear_has_one_bias_a_gate():
    layer = both("gru", init=Init("linear"))
    assert not layer.bias_hh_l0.any()
    assert 0 < layer.bias_ih_l0.abs().max() <= 1 / math.sqrt(3)
    assert layer.bias_ih_l1.abs().max() <= 1 / math.sqrt(2 * H)
    assert layer.weight_hh_l1.abs().max() <= 1 / math.sqrt(H)


@pytest.mark.parametrize("init", [Init("orthogonal"), Init(chrono=50), Init("he", chrono=50)])
def test_reset_parameters_starts_as_a_new_layer_does(init):
    layer = make("lstm", init=init, learn_initial_state=True)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(torch.nan)
    torch.manual_seed(0)
    layer.reset_parameters()
    new = make("lstm", init=init, learn_initial_state=True)
    for mine, other in zip(layer.parameters(), new.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_a_users_cell_supports_every_initialisation():
    class Leaky(seqloom.Cell):
        def __init__(self, input_size, hidden_size):
            super().__init__(input_size, hidden_size)
            self.weight_ih = torch.nn.Parameter(torch.randn(hidden_size, input_size))
            self.weight_hh = torch.nn.Parameter(torch.randn(hidden_size, hidden_size))

        def step(self, x, state, mask=None):
            (h,) = state
            seen = h if mask is None else h * mask
            h = torch.lerp(h, torch.tanh(x @ self.weight_ih.T + seen @ self.weight_hh.T), 0.5)
            return h, (h,)

    noise = seqloom.Dropouts(recurrent=0.2, zoneout=0.1, weight=0.1)
    layer = make(Leaky, 3, 8, 2, bidirectional=True, dropouts=noise, learn_initial_state=True, init=Init("orthogonal"))
    y, state = layer(X, lengths=[6, 0, 3, 1], reset=X[..., 0] > 1)
    y.sum().backward()
    assert y.shape == (4, 6, 16) and state.shape == (4, 4, 8)
    assert all(p.grad.any() for p in layer.parameters())
