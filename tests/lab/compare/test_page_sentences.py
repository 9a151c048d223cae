"""Sentences and intervals of a comparison's page."""

from types import SimpleNamespace

import pytest

from seqloom.lab.compare.page import _as_sentence, _find_interval
from seqloom.lab.compare.significance import Estimate


@pytest.mark.parametrize(
    ("mean", "half", "percent", "ends"),
    [
        (0.95, 0.1, True, (0.85, 1.0)),
        (0.05, 0.1, True, (0.0, 0.15)),
        (0.95, 0.1, False, (0.85, 1.05)),
        (0.05, 0.1, False, (-0.05, 0.15)),
    ],
)
def test_an_interval_of_a_share_stays_between_nothing_and_all(mean, half, percent, ends):
    assert _find_interval(Estimate(mean, half, [mean]), SimpleNamespace(percent=percent)) == pytest.approx(ends)


def test_a_line_of_the_terminal_becomes_a_sentence():
    assert _as_sentence("splits  train 9") == "Splits: train 9"
    assert _as_sentence("note    two rows are equal") == "Two rows are equal"
