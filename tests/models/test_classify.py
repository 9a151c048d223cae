import pytest
import torch

import seqloom
from seqloom.layers.readout import READOUTS
from seqloom.layers.registry import make
from seqloom.models.classify import Classify
from seqloom.models.embed import Embed


def model(readout="last", bidirectional=False, dropout=0.0):
    torch.manual_seed(0)
    return Classify(seqloom.GRU(3, 8, batch_first=True, bidirectional=bidirectional), 5, readout, dropout).eval()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("readout", READOUTS)
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


@pytest.mark.parametrize("readout", READOUTS)
def test_an_empty_row_scores_the_bias_of_the_head(readout):
    classify = model(readout)
    scores = classify(torch.randn(2, 6, 3), torch.tensor([0, 6]))
    torch.testing.assert_close(scores[0], classify.head.bias)


def test_dropout_acts_only_in_training():
    classify, x = model(dropout=0.5), torch.randn(2, 6, 3)
    assert torch.equal(classify(x), classify(x))
    classify.train()
    assert not torch.equal(classify(x), classify(x))


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="last, mean, max, max_mean, attention, got 'first'"):
        Classify(seqloom.GRU(3, 8, batch_first=True), 5, "first")
    with pytest.raises(ValueError, match="batch_first=True"):
        Classify(seqloom.GRU(3, 8), 5)
    with pytest.raises(ValueError, match="either classes or outputs; got classes=2 and outputs=3"):
        Classify(make("gru", 3, 8), 2, outputs=3)
    with pytest.raises(ValueError, match="has 4 features, the layer has input_size=3"):
        Classify(make("gru", 3, 8), 2, embed=Embed(9, 4))


@pytest.mark.sample(3)
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("layer", ["attn_rnn", "bi_lstm", "tcn"])
def test_a_classifier_learns_saves_loads_and_predicts_the_same(layer, readout, tmp_path):
    def made():
        return Classify(make(layer, 6, 8), 3, readout, embed=Embed(9, 6))

    classify, ids, lengths = made(), torch.randint(1, 9, (6, 5)), torch.tensor([5, 2, 4, 5, 1, 3])
    ids[:, 0] = torch.arange(1, 7)
    y = torch.tensor([0, 1, 2, 2, 1, 0])
    optimiser = torch.optim.Adam(classify.parameters(), 0.03)
    for _ in range(60):
        loss = classify.loss(ids, y, lengths)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert torch.equal(classify.predict(ids, lengths), y)
    torch.save(classify.state_dict(), tmp_path / "weights.pt")
    again = made()
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(again(ids, lengths), classify(ids, lengths))


def test_outputs_are_real_values_trained_by_their_squared_error():
    values, x, y = Classify(make("gru", 3, 8), outputs=2), torch.randn(4, 5, 3), torch.randn(4, 2)
    torch.testing.assert_close(values.loss(x, y), (values(x) - y).square().mean())
    assert torch.equal(values.predict(x), values(x))
    with pytest.raises(ValueError, match=r"shape \(4, 2\) of the values, got \(4,\)"):
        values.loss(x, y[:, 0])


def test_missing_or_invalid_targets_are_refused():
    classify, x = model(), torch.randn(2, 6, 3)
    with pytest.raises(ValueError, match=r"classes y must lie between 0 and 4 .*got 5 at \(1,\)"):
        classify.loss(x, torch.tensor([4, 5]))
    with pytest.raises(ValueError, match="at least one target"):
        classify.loss(x[:0], torch.tensor([], dtype=torch.long))
