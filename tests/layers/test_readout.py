import pytest
import torch

from seqloom.layers.readout import READOUTS, Readout


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", READOUTS)
def test_a_row_with_a_length_reads_as_the_same_row_alone(name, bidirectional):
    readout = Readout(name, 6, bidirectional).double()
    y = torch.randn(3, 5, 6, dtype=torch.float64)
    poisoned = y.clone()
    poisoned[1, 2:] = 1e6
    read = readout(poisoned, torch.tensor([5, 2, 0]))
    torch.testing.assert_close(read[:1], readout(y[:1]))
    torch.testing.assert_close(read[1:2], readout(y[1:2, :2]))
    assert not read[2].any(), "an empty row reads 0"


def test_each_readout_is_what_it_says():
    y = torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(Readout("last", 4)(y), y[:, -1])
    torch.testing.assert_close(Readout("mean", 4)(y), y.mean(1))
    torch.testing.assert_close(Readout("max", 4)(y), y.amax(1))
    torch.testing.assert_close(Readout("max_mean", 4)(y), torch.cat([y.amax(1), y.mean(1)], 1))
    attention = Readout("attention", 4).double()
    a = torch.softmax(torch.tanh(y @ attention.key.weight.T + attention.key.bias) @ attention.query.weight[0], 1)
    torch.testing.assert_close(attention(y), torch.einsum("bt,bth->bh", a, y))


def test_last_of_two_directions_reads_where_each_of_them_ends():
    y = torch.randn(2, 5, 4)
    read = Readout("last", 4, bidirectional=True)(y, torch.tensor([5, 3]))
    torch.testing.assert_close(read[1], torch.cat([y[1, 2, :2], y[1, 0, 2:]]))


@pytest.mark.parametrize("name", READOUTS)
def test_no_gradient_reaches_the_padding_and_none_is_nan(name):
    readout = Readout(name, 4).double()
    y = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(readout(y, torch.tensor([0, 3])).square().sum(), y)
    assert gradient[1, :3].any() and not gradient[1, 3:].any() and not gradient[0].any()


@pytest.mark.parametrize("name", READOUTS)
def test_nan_in_the_padding_reaches_nothing(name):
    readout, y = Readout(name, 4), torch.randn(3, 5, 4)
    spoiled = y.masked_fill(torch.arange(5).view(1, 5, 1) >= torch.tensor([5, 2, 0]).view(3, 1, 1), torch.nan)
    assert torch.equal(readout(spoiled.requires_grad_(), [5, 2, 0]), readout(y, [5, 2, 0]))
    (gradient,) = torch.autograd.grad(readout(spoiled, [5, 2, 0]).square().sum(), spoiled)
    assert torch.isfinite(gradient).all()


def test_an_unknown_readout_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="last, mean, max, max_mean, attention, got 'first'"):
        Readout("first", 4)


def test_lengths_are_a_list_or_of_a_small_type():
    y, readout = torch.randn(2, 5, 4), Readout("last", 4)
    expected = readout(y, torch.tensor([0, 3]))
    assert torch.equal(readout(y, [0, 3]), expected)
    assert torch.equal(readout(y, torch.tensor([0, 3], dtype=torch.uint8)), expected)
    with pytest.raises(ValueError, match="between 0 and the 5 steps"):
        readout(y, [6, 3])
