import math

import pytest
import torch

from seqloom.attention import Attention
from seqloom.attention.position import ALiBi, Learned, Relative, RelativeXL, Rotary, Sinusoidal, sinusoid
from seqloom.core.errors import InputError

DOUBLE = torch.float64


def test_the_sinusoid_is_its_formula():
    table = sinusoid(torch.arange(30), 10, DOUBLE)
    for p in (0, 1, 7, 29):
        for i in range(5):
            angle = p / 10000 ** (2 * i / 10)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    assert sinusoid(torch.arange(3), 7).shape == (3, 7)


@pytest.mark.parametrize("shift", [1, 5, 300])
def test_a_shift_of_the_sinusoid_is_one_linear_map_for_all_positions(shift):
    dim, p = 12, torch.arange(40)
    turn = torch.zeros(dim, dim, dtype=DOUBLE)
    for i in range(dim // 2):
        angle = shift / 10000 ** (2 * i / dim)
        cos, sin = math.cos(angle), math.sin(angle)
        turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[cos, sin], [-sin, cos]])
    torch.testing.assert_close(sinusoid(p + shift, dim, DOUBLE), sinusoid(p, dim, DOUBLE) @ turn.T)


def test_sinusoidal_and_learned_are_added_at_each_rows_own_positions():
    x, at = torch.randn(2, 3, 8, dtype=DOUBLE), torch.tensor([[0, 1, 2], [5, 6, 7]])
    learned = Learned(8, 10).double()
    torch.testing.assert_close(learned(x, at) - x, learned.table[at])
    torch.testing.assert_close(Sinusoidal(8)(x, at)[1], x[1] + sinusoid(torch.arange(5, 8), 8, DOUBLE))


def test_a_sequence_longer_than_the_learned_table_raises_an_error():
    learned = Learned(4, 10)
    with pytest.raises(InputError, match=r"11 steps .* table of 10 .* max_length=11"):
        learned(torch.randn(1, 11, 4), torch.arange(11).unsqueeze(0))
    with pytest.raises(InputError, match="12 steps"):
        learned(torch.randn(2, 2, 4), torch.tensor([[0, 1], [10, 11]]))


def test_rotary_products_depend_only_on_the_distance():
    rotary = Rotary(2, 8)
    q, k = torch.randn(1, 2, 1, 8, dtype=DOUBLE), torch.randn(1, 2, 1, 8, dtype=DOUBLE)

    def product(i, j):
        return rotary.query(q, torch.tensor([[i]])) @ rotary.key(k, torch.tensor([[j]])).mT

    torch.testing.assert_close(product(5, 3), product(105, 103))
    torch.testing.assert_close(product(7, 7), q @ k.mT)
    assert not torch.allclose(product(5, 3), product(5, 4))


def test_rotary_turns_each_pair_by_its_angle():
    q, at = torch.randn(1, 1, 4, 6, dtype=DOUBLE), torch.tensor([[0, 2, 3, 9]])
    turned = Rotary(1, 6).query(q, at)
    for t, p in enumerate(at[0].tolist()):
        for i in range(3):
            z = complex(q[0, 0, t, i], q[0, 0, t, i + 3]) * complex(
                math.cos(p * 10000 ** (-i / 3)), math.sin(p * 10000 ** (-i / 3))
            )
            assert turned[0, 0, t, i].item() == pytest.approx(z.real)
            assert turned[0, 0, t, i + 3].item() == pytest.approx(z.imag)


def test_alibi_is_its_formula():
    at = torch.arange(5).unsqueeze(0)
    bias = ALiBi(8, 4).bias(torch.zeros(1, 8, 5, 4), at, at)
    assert bias.shape == (1, 8, 5, 5)
    assert bias[0, 0, 4, 1].item() == -0.5 * 3
    assert bias[0, 7, 0, 2].item() == -(2**-8) * 2


def test_relative_positions_have_one_bias_per_distance_up_to_the_maximum():
    relative = Relative(2, 4, reach=3)
    torch.nn.init.normal_(relative.table)
    at = torch.arange(9).unsqueeze(0)
    bias = relative.bias(torch.zeros(1, 2, 9, 4), at, at)
    for i in range(9):
        for j in range(9):
            assert torch.equal(bias[0, :, i, j], relative.table[max(-3, min(3, i - j)) + 3])


def test_xl_scores_are_its_equation():
    heads, d, T = 2, 3, 6
    xl = RelativeXL(heads, d).double()
    for p in xl.parameters():
        torch.nn.init.normal_(p)
    attention = Attention(heads * d, heads, position=xl).double()
    x = torch.randn(1, T, heads * d, dtype=DOUBLE)
    q, k = (product(x).view(T, heads, d) for product in (attention.q, attention.k))
    s = torch.empty(heads, T, T, dtype=DOUBLE)
    for i in range(T):
        for j in range(T):
            r = xl.W(sinusoid(torch.tensor(i - j), heads * d, DOUBLE)).view(heads, d)
            s[:, i, j] = ((q[i] + xl.u[:, 0]) * k[j] + (q[i] + xl.v[:, 0]) * r).sum(-1) / math.sqrt(d)
    torch.testing.assert_close(attention.weights(x)[0], s.softmax(-1))
