"""A wrong shape or range raises an error with the remedy; integers of every type are accepted."""

import pytest
import torch

from seqloom.core.errors import InputError
from seqloom.layers import registry
from seqloom.models.characters import Characters
from seqloom.models.classify import Classify
from seqloom.models.decoding import ctc
from seqloom.models.embed import Embed
from seqloom.models.forecast import Forecast
from seqloom.models.generate import Generate
from seqloom.models.segments import SegmentForecast
from seqloom.models.tag import Tag
from seqloom.models.transcribe import Transcribe

X, IDS = torch.randn(2, 4, 3), torch.randint(1, 5, (2, 4))


def layer(width=3):
    return registry.make("gru", width, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Tag(layer(), 5).loss(X, IDS[:, :3]), r"y must hold a tag for each step, \(2, 4\); got \(2, 3\)"),
        (lambda: Tag(layer(), 5).loss(X, IDS[:, 0]), r"\(2, 4\); got \(2,\)"),
        (lambda: Forecast(layer(), 2)(X[0]), r"a series must be \(B, T, D\) .*, got \(4, 3\)"),
        (lambda: Forecast(layer(), 2)(X[:, :0]), r"at least one step, got \(2, 0, 3\)"),
        (lambda: SegmentForecast(layer(4), 2, 3, 2)(X[0]), r"x must be \(B, T, 3\) .*, got \(4, 3\)"),
        (lambda: Transcribe(layer(), 5)(X[0]), r"frames must be \(B, T, D\), got \(4, 3\)"),
        (lambda: Transcribe(layer(), 5).loss(X, IDS[:, 0]), r"targets y must be \(B, S\), got \(2,\)"),
        (lambda: Characters(5)(IDS), r"letters must be \(B, T, C\), .*; got \(2, 4\)"),
        (lambda: Characters(5, kind="cnn")(torch.ones(2, 4, 0, dtype=torch.long)), r"C at least 1 .*\(2, 4, 0\)"),
        (lambda: ctc.greedy(X, [-1, 2]), "lengths must lie between 0 and the 4 steps of input, got -1"),
        (lambda: ctc.prefix_beam(X, [5, 2]), "lengths must lie between 0 and the 4 steps of input, got 5"),
        (lambda: Generate(Embed(5, 3), layer()).search(IDS, -1), "stop must be an id below .* of 5, got -1"),
        (lambda: Generate(Embed(5, 3), layer()).sample(IDS, stop=5), "stop must be an id below .* of 5, got 5"),
    ],
)
def test_a_wrong_shape_or_number_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_targets_may_be_whole_numbers_of_any_type():
    models = [
        (Classify(layer(), 5), (X,), IDS[:, 0]),
        (Tag(layer(), 5), (X,), IDS),
        (Generate(Embed(5, 3), layer()), (), IDS),
    ]
    for model, before, y in models:
        torch.testing.assert_close(model.loss(*before, y.int()), model.loss(*before, y))
