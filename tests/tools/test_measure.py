import pytest
import torch

import seqloom
from seqloom import measure


def test_the_costs_are_those_of_the_products():
    cost = measure.cost("gru", 24, 32)
    assert cost.parameters == 3 * (24 * 32 + 32 * 32 + 2 * 32)
    assert cost.flops_per_token == 2 * 3 * (24 * 32 + 32 * 32)
    assert cost.state_floats == 32


def test_the_saved_memory_grows_with_the_length():
    layer = seqloom.GRU(16, 16, batch_first=True, kernel="loop")
    whole, half = (measure.saved_bytes(layer, torch.randn(2, steps, 16)) for steps in (100, 50))
    assert half == pytest.approx(whole / 2, rel=0.05)
    assert whole > 2 * 100 * 16 * 4 * 3


def test_the_gradient_product_is_what_autograd_finds():
    layer = seqloom.LSTM(3, 5, dtype=torch.float64)
    x = torch.randn(6, 3, dtype=torch.float64)
    hx = tuple(torch.randn(1, 5, dtype=torch.float64) for _ in range(2))

    def last(flat):
        _, (h, c) = layer(x, (flat[:5].unsqueeze(0), flat[5:].unsqueeze(0)))
        return torch.cat([h[0], c[0]])

    jacobian = torch.autograd.functional.jacobian(last, torch.cat([hx[0][0], hx[1][0]]))
    states = tuple(s.unsqueeze(1) for s in hx)
    norms = measure.gradient_norms(layer, x, states)
    assert norms[0] == 1
    torch.testing.assert_close(norms[-1], torch.linalg.matrix_norm(jacobian, 2))
    assert norms[1] == measure.jacobian_norms(layer, x, states)[-1]


def test_the_jacobian_of_a_plain_rnn_is_its_matrix_times_the_slope():
    layer = seqloom.RNN(3, 4, dtype=torch.float64)
    x = torch.zeros(1, 3, dtype=torch.float64)
    with torch.no_grad():
        layer.bias_ih_l0.zero_()
        layer.bias_hh_l0.zero_()
    assert measure.jacobian_norms(layer, x)[0] == pytest.approx(
        float(torch.linalg.matrix_norm(layer.weight_hh_l0.detach(), 2))
    )


def test_a_batch_where_one_sequence_is_wanted_is_refused():
    with pytest.raises(ValueError, match=r"one sequence \(T, D\)"):
        measure.gradient_norms(seqloom.GRU(3, 4), torch.randn(2, 5, 3))


@pytest.mark.parametrize(("name", "printed"), [("rnn", 24_832), ("lstm", 99_328), ("gru", 74_496)])
def test_published_examples_count_two_biases(name, printed):
    assert measure.FORMULAS[name][1](64, 128) == printed
    assert measure.ONE_BIAS[name][1](64, 128) < printed
