"""torch's dropout between layers, in ours."""

import pytest
import torch

import seqloom
from seqloom.kernels.runner import run_job as scan

X = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(3))
each_kind = pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])


def make(kind, *args, **kwargs):
    torch.manual_seed(0)
    return getattr(seqloom, kind)(*args, **kwargs)


@each_kind
def test_dropout_is_active_in_training_only(kind):
    layer = make(kind, 3, 4, 2, dropout=0.5)
    assert not torch.equal(layer(X)[0], layer(X)[0])
    layer.eval()
    assert torch.equal(layer(X)[0], layer(X)[0])
    assert torch.equal(layer(X)[0], make(kind, 3, 4, 2)(X)[0])


@each_kind
def test_dropout_of_one_leaves_zeros_for_the_second_layer(kind):
    layer = make(kind, 3, 4, 2, dropout=1.0)
    assert torch.equal(layer(X)[0], layer(-X)[0])
    second = make(kind, 4, 4)
    second.load_state_dict({n.replace("l1", "l0"): w for n, w in layer.state_dict().items() if "l1" in n})
    torch.testing.assert_close(layer(X)[0], second(torch.zeros(5, 2, 4))[0], rtol=0, atol=1e-6)


@each_kind
def test_dropout_spares_the_last_layer(kind):
    layer = make(kind, 3, 4, 1, dropout=1.0)
    assert torch.equal(layer(X)[0], layer.eval()(X)[0])
    assert layer(X)[0].all()


@each_kind
def test_dropout_can_be_changed_later(kind):
    layer = make(kind, 3, 4, 2)
    layer.dropout = 1.0
    assert torch.equal(layer(X)[0], layer(-X)[0])


@each_kind
def test_training_and_eval_are_alike_without_dropout(kind):
    layer = make(kind, 3, 4, 2, bidirectional=True)
    assert torch.equal(layer(X)[0], layer.eval()(X)[0])


@each_kind
def test_dropout_leaves_the_share_asked_for_and_scales_it(kind):
    layer = make(kind, 3, 200, 2, dropout=0.25)
    seen = []
    layer.run_with(lambda cell, job, *rest: (seen.append(job.x), scan(cell, job, *rest))[1], X)
    first = make(kind, 3, 200)
    first.load_state_dict({n: w for n, w in layer.state_dict().items() if n.endswith("l0")})
    actual, whole = seen[1].transpose(0, 1).detach(), first(X)[0].detach()
    dropped = actual == 0
    assert abs(dropped.float().mean() - 0.25) < 0.04  # 4 standard deviations of 2000 draws
    torch.testing.assert_close(actual[~dropped], whole[~dropped] * 4 / 3)
