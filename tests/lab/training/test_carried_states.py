"""Which language models carry their state from batch to batch."""

import pytest

from seqloom.lab.kinds.layers import build_layer, has_fixed_state
from seqloom.lab.kinds.settings import TrainSettings


@pytest.mark.parametrize(
    ("model", "is_fixed"), [("gru", True), ("lstm", True), ("transformer_xl", True), ("transformer", False)]
)
def test_a_state_of_one_size_is_carried(model, is_fixed):
    layer = build_layer(TrainSettings(model=model, hidden=8, layers=1), 8)
    assert layer.training
    assert has_fixed_state(layer) == is_fixed
    assert layer.training
