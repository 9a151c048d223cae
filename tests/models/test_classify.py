import pytest
import torch

import seqloom
from seqloom.models.classify import Classify


def model(readout="last", bidirectional=False, dropout=0.0):
    torch.manual_seed(0)
    return Classify(seqloom.GRU(3, 8, batch_first=True, bidirectional=bidirectional), 5, readout, dropout).eval()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("readout", ["last", "mean"])
def test_a_row_with_a_length_scores_as_the_same_row_alone(readout, bidirectional):
    classify = model(readout, bidirectional)
    x = torch.randn(2, 6, 3)
    x[1, 4:] = 1e3
    scores = classify(x, torch.tensor([6, 4]))
    torch.testing.assert_close(scores[1:], classify(x[1:, :4]))
    torch.testing.assert_close(scores[:1], classify(x[:1]))


def test_last_reads_the_last_real_output():
    classify = model()
    x = torch.randn(2, 6, 3)
    y, _ = classify.layer(x)
    torch.testing.assert_close(classify(x, [6, 2]), classify.head(torch.stack([y[0, 5], y[1, 1]])))


def test_last_of_two_directions_reads_where_each_of_them_ends():
    classify = model(bidirectional=True)
    x = torch.randn(1, 6, 3)
    _, h = classify.layer(x)
    torch.testing.assert_close(classify(x), classify.head(torch.cat([h[0], h[1]], -1)))


def test_mean_leaves_the_padding_out():
    classify = model("mean")
    x = torch.randn(1, 6, 3)
    y, _ = classify.layer(x)
    torch.testing.assert_close(classify(x, [4]), classify.head(y[:, :4].mean(1)))


@pytest.mark.parametrize("readout", ["last", "mean"])
def test_an_empty_row_scores_the_bias_of_the_head(readout):
    classify = model(readout)
    scores = classify(torch.randn(2, 6, 3), torch.tensor([0, 6]))
    torch.testing.assert_close(scores[0], classify.head.bias)


def test_dropout_is_there_in_training_alone():
    classify, x = model(dropout=0.5), torch.randn(2, 6, 3)
    assert torch.equal(classify(x), classify(x))
    classify.train()
    assert not torch.equal(classify(x), classify(x))


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="last, mean, got 'first'"):
        Classify(seqloom.GRU(3, 8, batch_first=True), 5, "first")
    with pytest.raises(ValueError, match="batch_first=True"):
        Classify(seqloom.GRU(3, 8), 5)
