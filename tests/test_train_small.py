from itertools import pairwise

import pytest
import torch
from torch import nn

import seqloom
from seqloom.models.classify import Classify
from seqloom.training.small import _share, accuracy, small_models_on_cpu, train


def problem(n=96):
    """Which of two features has the larger sum."""
    x = torch.randn(n, 5, 2, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1)[:, 0] > x.sum(1)[:, 1]).long()


def trained(seed=0, epochs=4, lr=0.02, dropout=0.2, **more):
    torch.manual_seed(seed)
    model = Classify(seqloom.GRU(2, 8, batch_first=True), 2, dropout=dropout)
    return model, train(model, problem(), problem(48), epochs=epochs, lr=lr, batch=16, seed=seed, **more)


def test_the_same_seed_gives_the_same_numbers_and_weights():
    (one, first), (two, second) = trained(3), trained(3)
    assert (first.loss, first.validation, first.best) == (second.loss, second.validation, second.best)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_another_seed_gives_other_numbers():
    assert trained(3)[1].loss != trained(4)[1].loss


def test_training_learns_and_leaves_the_model_at_its_best_epoch():
    model, record = trained(epochs=8)
    assert record.loss[-1] < 0.7 * record.loss[0]
    assert record.validation[record.best] == max(record.validation) > 0.9
    assert accuracy(model, problem(48)) == record.validation[record.best]
    assert len(record.seconds) == len(record.loss) == 8


def test_the_weights_are_those_of_the_best_epoch_not_of_the_last():
    class Scripted(nn.Module):
        """Right on every row after epochs 1 and 2, wrong later."""

        def __init__(self):
            super().__init__()
            self.epoch = nn.Parameter(torch.zeros(()))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += self.training
            right = x.sum(1).flip(1)
            return (right if self.calls <= 2 else -right) + self.epoch

    model = Scripted()
    record = train(model, problem(), problem(48), epochs=4, lr=0.1, batch=96)
    assert record.validation == [1, 1, 0, 0]
    assert (record.best, model.calls.item()) == (1, 2)


def test_every_epoch_is_told():
    told = []
    trained(epochs=3, after_epoch=lambda: told.append(1))
    assert len(told) == 3


def test_training_leaves_the_callers_random_numbers_alone():
    model = Classify(seqloom.GRU(2, 8, batch_first=True), 2, dropout=0.2)
    before = torch.random.get_rng_state()
    train(model, problem(), problem(48), epochs=1, lr=0.01)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_lengths_reach_the_model_in_training_and_validation():
    x, y = problem()
    lengths = torch.full((len(x),), 3)
    spoilt = x.clone()
    spoilt[:, 3:] = 5.0
    records = []
    for data in ((x, y, lengths), (spoilt, y, lengths)):
        torch.manual_seed(0)
        model = Classify(seqloom.RNN(2, 4, batch_first=True), 2)
        records.append(train(model, data, data, epochs=2, lr=0.01))
    assert records[0].loss == records[1].loss
    assert records[0].validation == records[1].validation


def test_a_loss_that_is_not_finite_is_an_error_that_names_the_epoch():
    model = Classify(seqloom.GRU(2, 8, batch_first=True), 2)
    x, y = problem()
    with pytest.raises(FloatingPointError, match=r"the loss is nan in epoch 1 at lr 0\.01"):
        train(model, (x * torch.nan, y), (x, y), epochs=3, lr=0.01)


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    shares = [_share(step, 100) for step in range(100)]
    assert shares[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert shares[5] == 1.0
    assert all(a > b for a, b in pairwise(shares[5:]))
    assert 0 < shares[-1] < 0.01
    assert _share(0, 1) == 1.0


def test_the_threads_are_given_back():
    before = torch.get_num_threads()
    with small_models_on_cpu():
        assert torch.get_num_threads() == 1
        assert float(torch.tensor(1e-39) * 0.5) == 0  # a denormal
    assert torch.get_num_threads() == before
    assert float(torch.tensor(1e-39) * 0.5) > 0
