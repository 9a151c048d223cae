import numpy as np
import pytest
import torch
from advise_data import sample_of, shift, tokens

from seqloom.lab.advise.gradient import measure_gradient

CPU = torch.device("cpu")


@pytest.mark.long
def test_the_gradient_points_to_the_side_that_decides_a_tag():
    x, ids = tokens(600, 8, kinds=4)
    (before, steps), (after, _) = (measure_gradient(sample_of("tag", x, shift(ids, lag)), 40.0, CPU) for lag in (2, -2))
    assert steps == 300
    assert before.ahead + 0.1 < after.ahead


@pytest.mark.slow
def test_an_early_decisive_step_has_a_longer_reach():
    x = np.random.default_rng(0).normal(size=(400, 8, 1))
    last, early = (
        measure_gradient(sample_of("classify", list(x), (x[:, at, 0] > 0).astype(int)), 40.0, CPU)[0] for at in (-1, 2)
    )
    assert last.within(1) > early.within(1) + 0.1
    assert last.reach < early.reach
    assert last.distances[0] == 0 and last.ahead == 0  # a class is read at the end, and nothing comes after
