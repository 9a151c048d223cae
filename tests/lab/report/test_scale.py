import math
import random

import pytest

from seqloom.lab.report.scale import make_scale


@pytest.mark.parametrize("log", [False, True])
def test_ticks_are_few_distinct_ordered_and_correctly_placed(log):
    random.seed(3)
    for _ in range(300):
        middle, spread = 10.0 ** random.uniform(-12, 12), 10.0 ** random.uniform(-4, 3)
        values = [middle * (1 + spread * random.random()) for _ in range(5)]
        axis = make_scale(values, log)
        places, texts = [t.at for t in axis.ticks], [t.text for t in axis.ticks]
        assert 2 <= len(places) <= 14 and places == sorted(places) and places[0] >= 0 and places[-1] <= 1
        assert len(set(texts)) == len(texts), (values, texts)
        shares = [axis.at(v) for v in sorted(values)]
        assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] <= 1


def test_round_numbers_read_as_a_person_writes_them():
    assert [t.text for t in make_scale([0.0, 1.0]).ticks] == ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert [t.text for t in make_scale([0.71, 0.83]).ticks] == ["0.725", "0.750", "0.775", "0.800", "0.825"]
    assert [t.text for t in make_scale([1.0, 1e4], log=True).ticks] == ["1", "10", "100", "1,000", "10,000"]
    assert [t.text for t in make_scale([16.0, 1024.0], log=True, marks=[16, 64, 1024]).ticks] == ["16", "64", "1,024"]
    assert make_scale([1e-10, 1.0], log=True).ticks[0].text == "10⁻¹⁰"


def test_zeros_stand_below_every_positive_value_of_a_logarithmic_axis():
    axis = make_scale([0.0, 1e-5, 1.0], log=True)
    assert axis.ticks[0].text == "0" and axis.at(0.0) == 0 < axis.at(1e-5) < axis.at(1.0)
    assert math.isclose(axis.at(1.0) - axis.at(1e-2), axis.at(1e-2) - axis.at(1e-4))
